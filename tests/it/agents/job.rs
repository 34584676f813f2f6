//! A job of several zprobe processes that simulate machines: each has a directory of its own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use zprobe_model::trace::{Event, Record};

/// All processes of a job, by node.
pub struct Job {
    children: Vec<Child>,
    dir: TempDir,
}

/// The result of a process of a job.
pub struct Node {
    /// The exit code; `None` if a signal killed the process.
    pub code: Option<i32>,
    /// The text on standard output.
    pub stdout: String,
    /// The text on standard error.
    pub stderr: String,
}

/// `zprobe run` with the ranks of a fixture, and without zprobe's variables in the environment.
pub fn zprobe(dir: &Path, program: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") {
            command.env_remove(name);
        }
    }
    let mut words = program.split_whitespace();
    let ranks = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ranks");
    command.args(["run", "--stage", "1", "--out", "run", "--output-format", "json"]).args(flags);
    command.arg("--rank-program").arg(ranks.join(words.next().expect("a program")));
    command.arg("--").args(words).current_dir(dir);
    command
}

/// A port on which no process listens.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    listener.local_addr().expect("its address").port()
}

impl Job {
    /// Starts two nodes with two ranks each; `flags` are passed to both nodes, `of_each` to single nodes.
    pub fn start(program: &str, flags: &[&str], of_each: [&[&str]; 2]) -> Self {
        let endpoint = format!("127.0.0.1:{}", free_port());
        Self::start_with(2, |node, dir| {
            let node_rank = node.to_string();
            let mut all =
                vec!["--nnodes", "2", "--node-rank", &node_rank, "--rdzv-endpoint", &endpoint];
            all.extend(["--nproc-per-node", "2"]);
            all.extend(flags.iter().chain(of_each[node]));
            zprobe(dir, program, &all)
        })
    }

    /// Starts a process for each node.
    pub fn start_with(nodes: usize, command: impl Fn(usize, &Path) -> Command) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let start = |node: usize| {
            let own = dir.path().join(node.to_string());
            fs::create_dir(&own).expect("a directory for the node");
            let log = |name: &str| File::create(own.join(name)).expect("a log");
            let mut command = command(node, &own);
            command.stdout(log("stdout")).stderr(log("stderr"));
            command.spawn().expect("zprobe starts")
        };
        Self { children: (0..nodes).map(start).collect(), dir }
    }

    /// Sends a signal to the process of a node.
    pub fn signal(&self, node: usize, signal: Signal) {
        kill(self.pid(node), signal).expect("the process is there");
    }

    fn pid(&self, node: usize) -> Pid {
        Pid::from_raw(self.children[node].id().cast_signed())
    }

    /// The run directory of a node's own ranks.
    fn run_dir(&self, node: usize) -> PathBuf {
        let run = self.dir.path().join(node.to_string()).join("run");
        if node == 0 { run } else { run.join(format!("agent-{node}")) }
    }

    /// The records that a node has written so far to the trace of its run, or of the first repeat.
    pub fn records(&self, node: usize) -> Vec<Record> {
        let run_dir = self.run_dir(node);
        let first = run_dir.join("repeat-0");
        let dir = if first.is_dir() { first } else { run_dir };
        let text = fs::read_to_string(dir.join("trace.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until this number of ranks is ready, and returns the process ids of all ranks.
    pub fn wait_for_ranks(&self, node: usize, ranks: usize) -> Vec<Pid> {
        loop {
            let records = self.records(node);
            let ready = records.iter().filter(|it| matches!(it.event, Event::RankReady { .. }));
            if ready.count() == ranks {
                return records.iter().filter_map(spawned).collect();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end of all processes, and returns their results.
    pub fn end(&mut self) -> Vec<Node> {
        let mut nodes = Vec::new();
        for (node, child) in self.children.iter_mut().enumerate() {
            let status = child.wait().expect("a child");
            let dir = self.dir.path().join(node.to_string());
            let read = |name: &str| fs::read_to_string(dir.join(name)).expect("a log");
            let (stdout, stderr) = (read("stdout"), read("stderr"));
            nodes.push(Node { code: status.code(), stdout, stderr });
        }
        nodes
    }

    /// True if a node's directory has an entry of this name.
    pub fn has_left(&self, node: usize, name: &str) -> bool {
        self.dir.path().join(node.to_string()).join(name).exists()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Node {
    /// The report on standard output, as JSON.
    pub fn report(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!(
                "no report ({error}); exit code {:?}\n{}\n{}",
                self.code, self.stdout, self.stderr
            )
        })
    }

    /// The code, the rank and the message of each finding, as one text.
    pub fn findings(&self) -> Vec<String> {
        let report = self.report();
        let findings = report["findings"].as_array().expect("findings");
        let text = |finding: &Value| {
            format!("{} {}: {}", finding["code"], finding["rank"], finding["message"])
        };
        findings.iter().map(text).collect()
    }
}

fn spawned(record: &Record) -> Option<Pid> {
    match record.event {
        Event::RankSpawned { pid, .. } => Some(Pid::from_raw(pid.cast_signed())),
        _ => None,
    }
}

/// True if a process has ended, even if its parent has not waited for it yet.
pub fn is_gone(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}
