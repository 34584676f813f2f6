//! A link between two machines that is cut in the middle of a run.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::machines::{FIRST, Machines};
use crate::runs::{MARK, left};

#[test]
#[ignore = "needs root and iproute2, and libtorch"]
fn both_sides_of_a_cut_link_report_what_they_know_and_nothing_is_left() {
    let Some(machines) = Machines::start() else { return };
    let dir = TempDir::new().unwrap();
    let mut processes = [0, 1].map(|node| zprobe(&machines, node, dir.path()));
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
    assert!(said("0").contains("ranks 2 and 3: lost: "), "{told}");
    assert!(said("1").contains(&format!("ranks 0 and 1: lost: {FIRST} is silent")), "{told}");
    assert_eq!(left(dir.path()), Vec::<std::path::PathBuf>::new());
}

/// Starts a node of a run with many steps.
fn zprobe(machines: &Machines, node: usize, dir: &Path) -> Child {
    let own = dir.join(node.to_string());
    fs::create_dir(&own).unwrap();
    let said = File::create(own.join("said")).unwrap();
    let (endpoint, node_rank) = (format!("{FIRST}:29500"), node.to_string());
    let [program, words @ ..] = machines.on(node);
    let mut command = Command::new(program);
    command.args(words).args([env!("CARGO_BIN_EXE_zprobe"), "run"]);
    command.args(["--nnodes", "2", "--node-rank", &node_rank, "--rdzv-endpoint", &endpoint]);
    command.args(["--nproc-per-node", "2", "--stage", "1", "--steps", "60000", "--device", "cpu"]);
    command.args(["--timeout", "20", "--out", "run", "--output-format", "concise"]);
    command.current_dir(own).env(MARK, dir).stdin(Stdio::null());
    command.stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap()
}
