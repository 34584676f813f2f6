//! Reads the command line of a launcher that is started once on each machine: torchrun, `accelerate launch`, and
//! `deepspeed` without ssh.

use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::path::Path;

use super::variables::JobVariables;
use super::{Endpoint, Job, Launcher, UNNUMBERED, UnclearRank};

/// The rendezvous port of torchrun's agents with `--rdzv-backend c10d` (`DEFAULT_PORT` of
/// `c10d_rendezvous_backend.py`).
const RDZV_PORT: u16 = 29_400;

/// The rendezvous port of the ranks if the command names no port; the same for all launchers.
const MASTER_PORT: u16 = 29_500;

/// The flags of a launcher, without their dashes and with `-` in place of `_`.
struct LauncherFlags {
    machines: &'static str,
    machine: &'static str,
    host: &'static str,
    port: &'static str,
    /// True if environment variables (such as `PET_NNODES`) may replace flags.
    variables: bool,
}

const TORCHRUN: LauncherFlags = LauncherFlags {
    machines: "nnodes",
    machine: "node-rank",
    host: "master-addr",
    port: "master-port",
    variables: true,
};

const ACCELERATE: LauncherFlags = LauncherFlags {
    machines: "num-machines",
    machine: "machine-rank",
    host: "main-process-ip",
    port: "main-process-port",
    variables: false,
};

const DEEPSPEED: LauncherFlags = LauncherFlags {
    machines: "num-nodes",
    machine: "node-rank",
    host: "master-addr",
    port: "master-port",
    variables: false,
};

/// The launchers that start processes on other machines themselves.
const REMOTE: [&str; 7] = ["srun", "mpirun", "mpiexec", "mpiexec.hydra", "pdsh", "ssh", "clush"];

/// The flags without a value: the word after such a flag may be the script.
const BARE: [&str; 8] = [
    "no-python",
    "run-path",
    "standalone",
    "no-ssh",
    "no-local-rank",
    "multi-gpu",
    "cpu",
    "use-deepspeed",
];

/// The length of the shortest prefix that is accepted for a flag. Launchers accept prefixes that are unique.
const SHORTEST: usize = 4;

/// Reads the job of the process that starts this command. For torchrun, environment variables such as `PET_NNODES`
/// count like flags.
pub(super) fn read(
    command: &[OsString],
    variables: &JobVariables<'_>,
) -> Result<Option<Job>, UnclearRank> {
    let words: Vec<String> =
        command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some(at) = launcher(&words) else { return Ok(None) };
    let LauncherCommand { flags, by, words } = at;
    let own = LauncherInputs { words, variables: flags.variables.then_some(variables) };
    let open = |name: &str, what| {
        let given = own.value(name);
        let words = match &given {
            Some(value) => format!("--{name} {value}"),
            None => format!("no --{name}"),
        };
        UnclearRank::Words { words, what }
    };
    let machines = own.value(flags.machines);
    if machines.is_none() && own.has("no-ssh") {
        return Err(open(flags.machines, "the number of machines"));
    }
    let Some(machines) = machines else { return Ok(None) };
    let size = match machines.split_once(':') {
        Some((least, most)) if least != most => {
            return Err(open(flags.machines, "the number of machines"));
        }
        Some((number, _)) => number.parse(),
        None => machines.parse(),
    };
    let size: usize = size.map_err(|_| open(flags.machines, "the number of machines"))?;
    // If one launcher starts the launchers of the other machines, there is only one zprobe process.
    let is_by_ssh = own.has("deepspeed-hostfile")
        || own.has("deepspeed-multinode-launcher")
        || flags.machines == DEEPSPEED.machines && !own.has("no-ssh");
    if size < 2 || is_by_ssh {
        return Ok(None);
    }
    if let Some(by) = by {
        return Err(UnclearRank::Behind { by: by.to_owned() });
    }
    let backend = own.value("rdzv-backend");
    let is_dynamic = backend.as_deref() == Some("c10d");
    if backend.as_deref().is_some_and(|it| !matches!(it, "c10d" | "static")) {
        return Err(open("rdzv-backend", "which machine has rank 0"));
    }
    let endpoint = match own.value("rdzv-endpoint") {
        Some(endpoint) if endpoint.contains(':') => Endpoint::named(&endpoint)
            .map_err(|why| UnclearRank::Endpoint { name: "--rdzv-endpoint", why })?,
        Some(host) => Endpoint::At { host, port: RDZV_PORT },
        None => {
            let host =
                own.value(flags.host).ok_or_else(|| open(flags.host, "the host of rank 0"))?;
            let port = match own.value(flags.port) {
                Some(port) => port.parse().map_err(|_| open(flags.port, "the port of rank 0"))?,
                None => MASTER_PORT,
            };
            Endpoint::At { host, port }
        }
    };
    let machine = own.value(flags.machine);
    let index = match &machine {
        Some(number) => number.parse().map_err(|_| open(flags.machine, "this machine's number"))?,
        None if is_dynamic && !is_free_here(&endpoint.clone().beside()) => UNNUMBERED,
        None => 0,
    };
    if index >= size && index != UNNUMBERED {
        return Err(open(flags.machine, "this machine's number, which counts from 0"));
    }
    let evidence = [("number of machines", Some(machines)), ("machine", machine)];
    let evidence = evidence.into_iter().filter_map(|(name, value)| Some((name, value?)));
    Ok(Some(Job {
        launcher: Launcher::Node,
        index,
        size,
        on_machine: None,
        evidence: evidence.collect(),
        endpoint: Some(endpoint),
    }))
}

/// The launcher that a command starts.
struct LauncherCommand<'a> {
    flags: LauncherFlags,
    /// The program before this launcher that starts processes on other machines, such as `srun`; `None` if there is no
    /// such program.
    by: Option<&'a str>,
    /// The words between the launcher and the script.
    words: &'a [String],
}

/// Finds the launcher that a command starts. The launcher may be the program itself, may follow another program such
/// as `env`, or may be a module or a script that Python runs.
fn launcher(words: &[String]) -> Option<LauncherCommand<'_>> {
    let name = |word: &'_ String| {
        Path::new(word).file_name().and_then(|it| it.to_str()).unwrap_or_default().to_owned()
    };
    let mut by = None;
    for (at, word) in words.iter().enumerate() {
        if by.is_none() && REMOTE.contains(&&*name(word)) {
            by = Some(word.as_str());
        }
        let is_launch = words.get(at + 1).is_some_and(|next| next == "launch");
        let (flags, from) = match &*name(word) {
            "torchrun" | "torch.distributed.run" | "torch.distributed.launch" => (TORCHRUN, at + 1),
            "deepspeed" | "deepspeed.pt" | "ds" | "deepspeed.launcher.runner" => {
                (DEEPSPEED, at + 1)
            }
            "accelerate" if is_launch => (ACCELERATE, at + 2),
            "accelerate-launch" | "accelerate.commands.launch" => (ACCELERATE, at + 1),
            // The arguments of a script do not start a launcher.
            _ if word.ends_with(".py") => return None,
            _ => continue,
        };
        let before = at.checked_sub(1).map(|before| &words[before]);
        if before.is_some_and(|flag| flag.starts_with("--") && !flag.contains('=')) {
            continue;
        }
        let words = &words[from..];
        return Some(LauncherCommand { flags, by, words: &words[..end(words)] });
    }
    None
}

/// Returns the number of words before the script.
fn end(words: &[String]) -> usize {
    let is_script = |(at, word): (usize, &String)| {
        let is_bare = |before: &String| {
            let flag = named(before);
            flag.is_some_and(|flag| flag.contains('=') || BARE.iter().any(|it| is_same(flag, it)))
        };
        word.ends_with(".py")
            || matches!(&**word, "-m" | "--module")
            || !word.starts_with('-') && at > 0 && is_bare(&words[at - 1])
    };
    words.iter().enumerate().position(is_script).unwrap_or(words.len())
}

/// The command-line words and the environment variables that a launcher reads.
struct LauncherInputs<'a> {
    words: &'a [String],
    /// The environment variables that replace flags; `None` if the launcher does not read such variables.
    variables: Option<&'a JobVariables<'a>>,
}

impl LauncherInputs<'_> {
    /// Returns the value of a flag: the word after the last flag with this name, or the part after its `=`. A
    /// variable is used if the words have no such flag.
    fn value(&self, name: &str) -> Option<String> {
        let of_word = |(at, word): (usize, &String)| match named(word)?.split_once('=') {
            Some((flag, value)) => is_same(flag, name).then(|| value.to_owned()),
            None => {
                self.words.get(at + 1).filter(|_| is_same(named(word).unwrap_or(""), name)).cloned()
            }
        };
        let given = self.words.iter().enumerate().rev().find_map(of_word);
        let variable = || format!("PET_{}", name.replace('-', "_").to_uppercase());
        given.or_else(|| self.variables?.get(&variable()))
    }

    /// True if the words have a flag with this name.
    fn has(&self, name: &str) -> bool {
        let is_it = |word: &&str| is_same(word.split('=').next().unwrap_or(word), name);
        self.words.iter().filter_map(|word| named(word)).any(|word| is_it(&word))
    }
}

/// Returns a flag without its dashes, or `None` for other words.
fn named(word: &str) -> Option<&str> {
    word.strip_prefix("--").or_else(|| word.strip_prefix('-'))
}

/// True if `flag` is the flag `name` or an accepted prefix of it. Launchers treat `-` and `_` alike.
fn is_same(flag: &str, name: &str) -> bool {
    let flag = flag.replace('_', "-");
    flag == name || flag.len() >= SHORTEST && name.starts_with(&flag)
}

/// True if an address belongs to this machine and no process listens at it. As with torchrun's agents, the first
/// process that can listen there gets the number 0.
fn is_free_here(endpoint: &Endpoint) -> bool {
    let Endpoint::At { host, port } = endpoint else { return false };
    let listened: io::Result<TcpListener> = TcpListener::bind((host.as_str(), *port));
    listened.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str) -> Result<Option<Job>, UnclearRank> {
        let words: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        let pet = |name: &str| (name == "PET_MASTER_PORT").then(|| "8".to_owned());
        read(&words, &JobVariables(&pet))
    }

    /// Returns the number of this machine, the number of machines, and the rendezvous address.
    fn place(command: &str) -> Option<(usize, usize, String)> {
        let job = of(command).expect("a clear command")?;
        Some((job.index, job.size, job.endpoint.expect("an endpoint").to_string()))
    }

    #[test]
    fn launchers_say_which_machine_this_is() {
        let at = |index, endpoint: &str| Some((index, 2, endpoint.to_owned()));
        for (command, expected) in [
            ("torchrun --nnodes 2 --node-rank 1 --master-addr a train.py", at(1, "a:8")),
            ("/bin/torchrun --nnodes=2:2 --node_rank=1 --rdzv_endpoint=a:5 -m t", at(1, "a:5")),
            ("python -m torch.distributed.run --nnodes 2 --master_addr a t.py", at(0, "a:8")),
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
            ("accelerate-launch --num_machines 2 --main_process_ip a t.py", at(0, "a:29500")),
            ("torchrun --nnodes 1 --nnode 2 --node-rank 1 --master-addr a t.py", at(1, "a:8")),
            ("chroot / torchrun --nnodes 2 --node-rank 1 --master-addr a t.py", at(1, "a:8")),
            // In the remaining cases zprobe is a single process, which one launcher starts.
            ("deepspeed --num_nodes 2 --master_addr a t.py", None),
            ("accelerate launch --num_machines 2 --deepspeed_hostfile hosts t.py", None),
            ("torchrun --nproc-per-node 2 t.py --nnodes 2", None),
            ("torchrun --standalone --nproc-per-node 2 t.py", None),
            ("torchrun --no-python ./train --nnodes 2", None),
            ("torchrun --nproc-per-node=2 train --nnodes 2", None),
            ("python train.py --launcher torchrun --nnodes 2 --master-addr a", None),
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
        // This address is reserved for documentation (RFC 5737), so no machine has it.
        let other = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 192.0.2.1:29400 t.py";
        assert_eq!(of(other).expect("a clear command").map(|it| it.index), Some(UNNUMBERED));
        assert!(of(&command("127.0.0.1")).is_err());
    }

    #[test]
    fn what_is_left_open_is_named() {
        for (command, what) in [
            ("torchrun --nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint a:1 t.py", "--nnodes 1:4"),
            ("torchrun --nnodes 2 --node-rank 0 t.py", "no --master-addr"),
            (
                "deepspeed --hostfile h --no_ssh --node_rank 0 --master_addr a t.py",
                "no --num-nodes",
            ),
            ("torchrun --nnodes 2 --node-rank 2 --master-addr a t.py", "--node-rank 2"),
            (
                "torchrun --nnodes 2 --rdzv-backend etcd --rdzv-endpoint a:1 t.py",
                "--rdzv-backend etcd",
            ),
        ] {
            let message = of(command).expect_err(command).to_string();
            assert!(message.starts_with(&format!("`{what}`")), "{command}: {message}");
        }
        let error = of("srun -N2 torchrun --nnodes 2 --master-addr a t.py").expect_err("srun");
        assert!(error.to_string().starts_with("srun starts processes on"), "{error}");
    }
}
