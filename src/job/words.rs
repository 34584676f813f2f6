//! The words of a launcher that is started once on each machine: torchrun, `accelerate launch`, and `deepspeed` without
//! ssh.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::Path;

use super::{Endpoint, Job, Launcher, UNNUMBERED, Unclear};

/// Port at which torchrun's agents meet with `--rdzv-backend c10d` (`DEFAULT_PORT` of `c10d_rendezvous_backend.py`).
const RDZV_PORT: u16 = 29_400;

/// Port at which the ranks meet where none is named, the same for all launchers.
const MASTER_PORT: u16 = 29_500;

/// Flags of a launcher, without their dashes and with `-` in place of `_`.
struct Flags {
    machines: &'static str,
    machine: &'static str,
    host: &'static str,
    port: &'static str,
}

const TORCHRUN: Flags =
    Flags { machines: "nnodes", machine: "node-rank", host: "master-addr", port: "master-port" };

const ACCELERATE: Flags = Flags {
    machines: "num-machines",
    machine: "machine-rank",
    host: "main-process-ip",
    port: "main-process-port",
};

const DEEPSPEED: Flags =
    Flags { machines: "num-nodes", machine: "node-rank", host: "master-addr", port: "master-port" };

/// Reads the place of the process that starts this command.
pub(super) fn read(command: &[OsString]) -> Result<Option<Job>, Unclear> {
    let words: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some((flags, own)) = launcher(&words) else { return Ok(None) };
    let own = Own(own);
    let Some(machines) = own.value(flags.machines) else { return Ok(None) };
    let open = |name: &str, what| {
        let value = own.value(name).unwrap_or_default();
        Unclear::Words { words: format!("--{name} {value}").trim().to_owned(), what }
    };
    let size = match machines.split_once(':') {
        Some((least, most)) if least != most => {
            return Err(open(flags.machines, "the number of machines"));
        }
        Some((number, _)) => number.parse(),
        None => machines.parse(),
    };
    let size: usize = size.map_err(|_| open(flags.machines, "the number of machines"))?;
    // Where one launcher starts the others by itself, there is one process.
    let is_by_ssh = own.has("deepspeed-hostfile")
        || own.has("deepspeed-multinode-launcher")
        || flags.machines == DEEPSPEED.machines && !own.has("no-ssh");
    if size < 2 || is_by_ssh {
        return Ok(None);
    }
    let backend = own.value("rdzv-backend");
    let is_dynamic = backend.is_some_and(|it| it == "c10d");
    if backend.is_some_and(|it| !matches!(it, "c10d" | "static")) {
        return Err(open("rdzv-backend", "on which machine rank 0 is"));
    }
    let endpoint = match own.value("rdzv-endpoint") {
        Some(endpoint) if endpoint.contains(':') => Endpoint::named(endpoint)
            .map_err(|why| Unclear::Endpoint { name: "--rdzv-endpoint", why })?,
        Some(host) => Endpoint::At { host: host.to_owned(), port: RDZV_PORT },
        None => {
            let host = own.value(flags.host).ok_or_else(|| open(flags.host, "where rank 0 is"))?;
            let port = match own.value(flags.port) {
                Some(port) => port.parse().map_err(|_| open(flags.port, "where rank 0 is"))?,
                None => MASTER_PORT,
            };
            Endpoint::At { host: host.to_owned(), port }
        }
    };
    let index = match own.value(flags.machine) {
        Some(number) => number.parse().map_err(|_| open(flags.machine, "which machine this is"))?,
        None if is_dynamic && !is_free_here(&endpoint.clone().beside()) => UNNUMBERED,
        None => 0,
    };
    if index >= size && index != UNNUMBERED {
        return Err(open(flags.machine, "which machine this is: the first is 0"));
    }
    let evidence = [("number of machines", Some(machines)), ("machine", own.value(flags.machine))];
    let evidence = evidence.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned())));
    Ok(Some(Job {
        launcher: Launcher::Node,
        index,
        size,
        on_machine: None,
        evidence: evidence.collect(),
        endpoint: Some(endpoint),
    }))
}

/// The flags of the launcher that a command starts, and the words for it alone.
fn launcher(words: &[String]) -> Option<(Flags, &[String])> {
    for (at, word) in words.iter().enumerate() {
        let name = Path::new(word).file_name()?.to_str()?;
        let is_launch = words.get(at + 1).is_some_and(|next| next == "launch");
        let (flags, from) = match name {
            "torchrun" | "torch.distributed.run" | "torch.distributed.launch" => (TORCHRUN, at + 1),
            "deepspeed" | "deepspeed.launcher.runner" => (DEEPSPEED, at + 1),
            "accelerate" if is_launch => (ACCELERATE, at + 2),
            "accelerate.commands.launch" => (ACCELERATE, at + 1),
            _ => continue,
        };
        let own = &words[from..];
        let is_script =
            |word: &String| word.ends_with(".py") || matches!(&**word, "-m" | "--module");
        let end = own.iter().position(is_script).unwrap_or(own.len());
        return Some((flags, &own[..end]));
    }
    None
}

/// The words for a launcher.
struct Own<'a>(&'a [String]);

impl Own<'_> {
    /// Value of a flag: the word behind it, or what follows `=`.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().enumerate().find_map(|(at, word)| match named(word)?.split_once('=') {
            Some((flag, _)) if is_same(flag, name) => word.split_once('=').map(|(_, value)| value),
            Some(_) => None,
            None if is_same(named(word)?, name) => self.0.get(at + 1).map(String::as_str),
            None => None,
        })
    }

    /// True if there is a flag of this name.
    fn has(&self, name: &str) -> bool {
        let is_it = |word: &&str| is_same(word.split('=').next().unwrap_or(word), name);
        self.0.iter().filter_map(|word| named(word)).any(|word| is_it(&word))
    }
}

/// A flag without its dashes; none for other words.
fn named(word: &str) -> Option<&str> {
    word.strip_prefix("--").or_else(|| word.strip_prefix('-'))
}

/// True if both are the same flag: launchers take `-` and `_` alike.
fn is_same(flag: &str, name: &str) -> bool {
    flag.replace('_', "-") == name
}

/// True if an address is one of this machine at which nobody listens: as torchrun's agents do, the first process
/// that can listen there does.
fn is_free_here(endpoint: &Endpoint) -> bool {
    let Endpoint::At { host, port } = endpoint else { return false };
    let listened: io::Result<TcpListener> = TcpListener::bind((host.as_str(), *port));
    listened.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str) -> Result<Option<Job>, Unclear> {
        read(&command.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    /// Number and size of the job with the port at which its processes meet.
    fn place(command: &str) -> Option<(usize, usize, String)> {
        let job = of(command).expect("a clear command")?;
        Some((job.index, job.size, job.endpoint.expect("an endpoint").to_string()))
    }

    #[test]
    fn launchers_say_which_machine_this_is() {
        let at = |index, endpoint: &str| Some((index, 2, endpoint.to_owned()));
        for (command, expected) in [
            ("torchrun --nnodes 2 --node-rank 1 --master-addr a train.py", at(1, "a:29500")),
            ("/bin/torchrun --nnodes=2:2 --node_rank=1 --rdzv_endpoint=a:5 -m t", at(1, "a:5")),
            ("python -m torch.distributed.run --nnodes 2 --master_addr a t.py", at(0, "a:29500")),
            ("env A=1 torchrun --nnodes 2 --master-addr a --master-port 7 t.py", at(0, "a:7")),
            ("torchrun --nnodes 2 --node-rank 1 --rdzv-endpoint a t.py", at(1, "a:29400")),
            (
                "accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip a t.py",
                at(1, "a:29500"),
            ),
            (
                "deepspeed --no_ssh --num_nodes 2 --node_rank=1 --master_addr a t.py",
                at(1, "a:29500"),
            ),
            // One process starts all.
            ("deepspeed --num_nodes 2 --master_addr a t.py", None),
            ("accelerate launch --num_machines 2 --deepspeed_hostfile hosts t.py", None),
            ("torchrun --nproc-per-node 2 t.py --nnodes 2", None),
            ("torchrun --standalone --nproc-per-node 2 t.py", None),
            ("torchrun --nnodes 1 t.py", None),
            ("python train.py --nnodes 2", None),
        ] {
            assert_eq!(place(command), expected, "{command}");
        }
    }

    #[test]
    fn the_first_of_unnumbered_machines_is_the_one_that_is_named() {
        let command =
            |host| format!("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {host}:0 t.py");
        // An address of documentation (RFC 5737), which no machine has.
        let other = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 192.0.2.1:29400 t.py";
        assert_eq!(of(other).expect("a clear command").map(|it| it.index), Some(UNNUMBERED));
        assert!(of(&command("127.0.0.1")).is_err());
    }

    #[test]
    fn what_is_left_open_is_named() {
        for (command, what) in [
            ("torchrun --nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint a:1 t.py", "--nnodes 1:4"),
            ("torchrun --nnodes 2 --node-rank 0 t.py", "--master-addr"),
            ("torchrun --nnodes 2 --node-rank 2 --master-addr a t.py", "--node-rank 2"),
            (
                "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint a:1 t.py",
                "--rdzv-backend etcd",
            ),
        ] {
            let told = of(command).expect_err(command).to_string();
            assert!(told.starts_with(&format!("`{what}`")), "{command}: {told}");
        }
    }
}
