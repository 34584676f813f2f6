//! A link between two machines that is cut in the middle of a run. The machines are network namespaces.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::runs::{MARK, left, program};

/// Address of the first machine, and its network.
const FIRST: &str = "10.213.7.1";

#[test]
#[ignore = "needs root and iproute2, and libtorch"]
fn both_sides_of_a_cut_link_report_what_they_know_and_nothing_is_left() {
    let Some(machines) = Machines::start() else { return };
    let dir = TempDir::new().unwrap();
    let mut processes = [0, 1].map(|node| machines.zprobe(node, dir.path()));
    let trace = |node: &str| fs::read_to_string(dir.path().join(node)).unwrap_or_default();
    while !trace("0/run/trace.jsonl").contains("\"step\":5,") {
        let ended = processes.each_mut().map(|process| process.try_wait().unwrap());
        assert_eq!(ended, [None, None], "the run has ended before its time");
        thread::sleep(Duration::from_millis(50));
    }
    machines.cut();
    let codes = processes.each_mut().map(|process| process.wait().unwrap().code());
    let said = |node: &str| fs::read_to_string(dir.path().join(node).join("said")).unwrap();
    let told = format!("{}\n{}", said("0"), said("1"));
    assert_eq!(codes, [Some(3), Some(3)], "{told}");
    assert!(said("0").contains("ranks 2 and 3: lost with"), "{told}");
    assert!(said("1").contains(&format!("ranks 0 and 1: lost with {FIRST}")), "{told}");
    assert_eq!(left(dir.path()), Vec::<std::path::PathBuf>::new());
}

/// Two network namespaces with a link between them.
struct Machines {
    names: [String; 2],
}

impl Machines {
    /// Makes the namespaces; none where the system has none, or this user may not.
    fn start() -> Option<Self> {
        program("ip")?;
        if !geteuid().is_root() {
            eprintln!("skipped: only root can make network namespaces");
            return None;
        }
        let id = std::process::id() % 10_000;
        let names = [format!("zp{id}a"), format!("zp{id}b")];
        let machines = Self { names };
        let [first, second] = &machines.names;
        if !ip(&["netns", "add", first]) {
            eprintln!("skipped: this system has no network namespaces");
            return None;
        }
        assert!(ip(&["netns", "add", second]));
        assert!(ip(&["link", "add", first, "type", "veth", "peer", "name", second]));
        for (name, address) in machines.names.iter().zip([FIRST, "10.213.7.2"]) {
            assert!(ip(&["link", "set", name, "netns", name]));
            assert!(ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", name]));
            assert!(ip(&["-n", name, "link", "set", name, "up"]));
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
        }
        Some(machines)
    }

    /// Starts a node of a run of many steps.
    fn zprobe(&self, node: usize, dir: &Path) -> Child {
        let own = dir.join(node.to_string());
        fs::create_dir(&own).unwrap();
        let said = File::create(own.join("said")).unwrap();
        let (endpoint, node_rank) = (format!("{FIRST}:29500"), node.to_string());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[node], env!("CARGO_BIN_EXE_zprobe"), "run"]);
        command.args(["--nnodes", "2", "--node-rank", &node_rank, "--rdzv-endpoint", &endpoint]);
        command.args([
            "--nproc-per-node",
            "2",
            "--stage",
            "1",
            "--steps",
            "60000",
            "--device",
            "cpu",
        ]);
        command.args(["--timeout", "20", "--out", "run", "--output-format", "concise"]);
        command.current_dir(own).env(MARK, dir).stdin(Stdio::null());
        command.stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap()
    }

    fn cut(&self) {
        assert!(ip(&["-n", &self.names[0], "link", "set", &self.names[0], "down"]));
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // The link goes with its ends.
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).output().unwrap().status.success()
}
