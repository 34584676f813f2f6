//! Scripts on several machines, each with a zprobe of its own around torchrun: one report covers all ranks.
//!
//! The machines are addresses of the loopback interface, or network namespaces; they share no directory.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::interpreter::python;
use crate::machines::{self, Machines};
use crate::runs::{MARK, left};

/// Machines that train together; each machine has a directory of its own.
struct Training {
    dir: TempDir,
    /// The address of the first machine, and the port of the ranks' rendezvous.
    master: (String, u16),
    namespaces: Option<Machines>,
    nodes: Vec<Child>,
}

/// The path of a file of the repository.
fn file(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

impl Training {
    fn new(namespaces: Option<Machines>) -> Self {
        let (host, free) = match &namespaces {
            Some(_) => (machines::FIRST, 29_500),
            None => {
                let listener = TcpListener::bind("127.0.0.2:0").unwrap();
                ("127.0.0.2", listener.local_addr().unwrap().port())
            }
        };
        let (dir, nodes) = (TempDir::new().unwrap(), Vec::new());
        Self { dir, master: (host.to_owned(), free), namespaces, nodes }
    }

    fn path(&self, node: usize, inside: &str) -> PathBuf {
        self.dir.path().join(node.to_string()).join(inside)
    }

    /// Starts the command of the next machine, in the namespace with this number if there are namespaces.
    fn start(&mut self, namespace: usize, words: &[&str]) {
        let node = self.nodes.len();
        fs::create_dir(self.path(node, "")).unwrap();
        let said = fs::File::create(self.path(node, "said")).unwrap();
        let prefix = self.namespaces.iter().flat_map(|it| it.on(namespace));
        let words: Vec<&str> = prefix.chain(words.iter().copied()).collect();
        let mut command = Command::new(words[0]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZPROBE_") {
                command.env_remove(name);
            }
        }
        let interface = self.namespaces.as_ref().map_or("lo", |it| it.interface(namespace));
        command.env("GLOO_SOCKET_IFNAME", interface).env("OMP_NUM_THREADS", "1");
        command.args(&words[1..]).env(MARK, self.dir.path()).stdin(Stdio::null());
        command.current_dir(self.path(node, "")).stdout(said.try_clone().unwrap()).stderr(said);
        self.nodes.push(command.spawn().unwrap());
    }

    /// Starts torchrun with `ranks` ranks of a script on `nodes` machines, under `zprobe exec` with these
    /// flags.
    fn exec(
        &mut self,
        nodes: usize,
        namespace: usize,
        ranks: usize,
        flags: &[&str],
        script: &[&str],
    ) {
        let torchrun = python().with_file_name("torchrun").display().to_string();
        let (host, port) = self.master.clone();
        let [nodes, node, ranks, port] =
            [nodes, self.nodes.len(), ranks, port.into()].map(|number: usize| number.to_string());
        let program =
            [env!("CARGO_BIN_EXE_zprobe"), "exec", "--out", "run", "--rdzv-timeout", "60"];
        let launcher = ["--", &torchrun, "--nnodes", &nodes, "--node-rank", &node];
        let rest = ["--nproc-per-node", &ranks, "--master-addr", &host, "--master-port", &port];
        self.start(namespace, &[&program, flags, &launcher, &rest, script].concat());
    }

    /// Waits for the ends of all machines, and returns their exit codes and outputs.
    fn end(&mut self) -> Vec<(Option<i32>, String)> {
        let ended: Vec<ExitStatus> = self.nodes.iter_mut().map(|it| it.wait().unwrap()).collect();
        let said = |node| fs::read_to_string(self.path(node, "said")).unwrap();
        let ended = ended.iter().enumerate().map(|(node, it)| (it.code(), said(node))).collect();
        // The script of a zprobe that was killed ends by itself, and so a little later.
        for _ in 0..600 {
            if left(self.dir.path()).is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(left(self.dir.path()), Vec::<PathBuf>::new());
        ended
    }

    fn report(&self, node: usize) -> Option<Value> {
        let text = fs::read_to_string(self.path(node, "run/report.json")).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }
}

/// The message of the only finding of a report.
fn message(report: &Value) -> &str {
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{report}");
    findings[0]["message"].as_str().unwrap()
}

#[test]
#[ignore = "needs an interpreter with torch, in ZPROBE_TEST_PYTHON"]
fn three_commands_on_two_machines_leave_one_report() {
    let mut training = Training::new(Machines::start());
    let script = file("examples/train/ddp.py");
    for (namespace, ranks) in [(0, 2), (1, 1), (1, 1)] {
        training.exec(3, namespace, ranks, &[], &[&script, "--accumulate", "2"]);
    }
    let ended = training.end();
    assert_eq!(ended.iter().map(|it| it.0).collect::<Vec<_>>(), [Some(0); 3], "{ended:?}");
    let report = training.report(0).unwrap();
    assert_eq!(report["verdict"], "clean", "{ended:?}");
    assert_eq!(report["run"]["spec"]["world_size"], 4);
    assert_eq!(report["ranks"].as_array().unwrap().len(), 4);
    let trace = fs::read_to_string(training.path(0, "run/trace.jsonl")).unwrap();
    let agents = trace.lines().filter(|line| line.contains("\"agent-joined\"")).count();
    assert_eq!(agents, 3);
    // The first machine has the whole trace, so the others keep none.
    assert!(!training.path(1, "run").exists() && !training.path(2, "run").exists());
}

#[test]
#[ignore = "needs an interpreter with torch, in ZPROBE_TEST_PYTHON"]
fn a_rank_of_another_machine_that_sleeps_is_named_with_its_place() {
    // On a loaded machine a rank may need longer than the timeout to reach its place.
    let mut told = ["15", "60", "240"].into_iter().filter_map(asleep);
    let said = told.find(|said| said.contains(" is in "));
    let said = said.expect("a rank that sleeps within minutes");
    assert!(said.starts_with("hung: rank 1 is in broken.py:"), "{said}");
    assert!(said.contains("while rank 0 waits"), "{said}");
}

/// Watches a script on two machines; the rank of the second machine sleeps in its second step. Returns the
/// message of the finding; `None` if zprobe's timeout ended the run before the second step began.
fn asleep(timeout: &str) -> Option<String> {
    let mut training = Training::new(None);
    let script = file("tests/engines/exec/scripts/broken.py");
    for _ in 0..2 {
        training.exec(2, 0, 1, &["--timeout", timeout], &[&script, "sleep", "1", "1.0"]);
    }
    let ended = training.end();
    let report = training.report(0)?;
    assert_eq!(ended.iter().map(|it| it.0).collect::<Vec<_>>(), [Some(3); 2], "{ended:?}");
    Some(message(&report).to_owned())
}

#[test]
#[ignore = "needs an interpreter with torch, in ZPROBE_TEST_PYTHON"]
fn ranks_of_a_zprobe_that_is_killed_are_lost_and_an_observed_training_goes_on() {
    for flags in [&[][..], &["--observe=500"]] {
        let mut training = Training::new(None);
        let script = file("examples/train/ddp.py");
        let words = [&*script, "--accumulate", "8", "--steps", "40", "--out", "saved"];
        for _ in 0..2 {
            training.exec(2, 0, 1, flags, &words);
        }
        let trace = training.path(0, "run/trace.jsonl");
        let is_backward =
            |line: &str| line.contains("\"rank\": 1,") && line.contains("\"backward-ended\"");
        while !fs::read_to_string(&trace).is_ok_and(|text| text.lines().any(is_backward)) {
            assert_eq!(training.nodes[0].try_wait().unwrap(), None, "ended before its time");
            thread::sleep(Duration::from_millis(50));
        }
        kill(Pid::from_raw(training.nodes[1].id().cast_signed()), Signal::SIGKILL).unwrap();
        let ended = training.end();
        assert_eq!(ended[0].0, Some(3), "{ended:?}");
        let report = training.report(0).unwrap();
        let findings = report["findings"].to_string();
        assert!(findings.contains("lost: the zprobe process on"), "{ended:?}");
        assert_eq!(training.path(0, "saved").exists(), !flags.is_empty(), "{ended:?}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch, in ZPROBE_TEST_PYTHON"]
fn machines_that_cannot_train_together_are_told_why() {
    let script = file("tests/engines/exec/scripts/broken.py");
    let script = [&*script, "none", "none", "before"];
    // The settings of the two machines differ.
    let mut training = Training::new(None);
    training.exec(2, 0, 1, &["--seed", "3"], &script);
    training.exec(2, 0, 1, &["--seed", "4"], &script);
    for (code, said) in training.end() {
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("different settings: seed is 3 and 4"), "{said}");
    }
    // Two jobs are started, each with a rank 0.
    let mut training = Training::new(None);
    let endpoint = format!("{}:{}", training.master.0, training.master.1);
    let torchrun = python().with_file_name("torchrun").display().to_string();
    for node in ["0", "1"] {
        let program = [env!("CARGO_BIN_EXE_zprobe"), "exec", "--out", "run", "--nnodes", "2"];
        let meeting = ["--node-rank", node, "--rdzv-endpoint", &endpoint, "--", &torchrun];
        let launcher = ["--standalone", "--nproc-per-node", "1"];
        training.start(0, &[&program[..], &meeting, &launcher, &script].concat());
    }
    for (code, said) in training.end() {
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("processes 0 and 1 of this job both have a rank 0"), "{said}");
    }
}
