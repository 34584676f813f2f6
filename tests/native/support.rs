//! Helpers that run the real `zprobe` in a directory of its own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program of the native ranks, which `cargo xtask build` puts next to zprobe.
pub fn rank_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_zprobe")).with_file_name("zprobe-rank")
}

use tempfile::TempDir;
use zprobe_model::trace::{Event, Trace};
use zprobe_report::Report;

/// Returns true if the tests try everything, and not only a representative part.
pub fn full() -> bool {
    std::env::var_os("ZPROBE_TEST_FULL").is_some()
}

/// The result of `zprobe run`.
pub struct Run {
    /// The exit code of the run.
    pub code: i32,
    /// The report of the run.
    pub report: Report,
    stderr: String,
    dir: TempDir,
}

/// Runs `zprobe run` with these arguments.
///
/// # Panics
/// If the run leaves no report.
pub fn zprobe(args: impl Args) -> Run {
    let dir = TempDir::new().expect("a temporary directory");
    let args = args.list();
    let output = run(&dir, &args, &["--output-format", "json"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{args:?}: no report ({err})\n{stderr}"));
    Run { code: output.status.code().expect("zprobe exits by itself"), report, stderr, dir }
}

fn run(dir: &TempDir, args: &[String], more: &[&str]) -> Output {
    command(dir, args, more).output().expect("zprobe starts")
}

fn command(dir: &TempDir, args: &[String], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.arg("run").args(args).args(more).args(["--out", "run"]).current_dir(dir.path());
    // The run is on the CPU even on a machine with a GPU, unless a test asks for a GPU.
    command.env("ZPROBE_DEVICE", "cpu");
    command
}

impl Run {
    /// The codes of the findings.
    pub fn codes(&self) -> Vec<&str> {
        self.report.findings.iter().map(|finding| finding.code.as_str()).collect()
    }

    /// The exit code and the standard output of `zprobe show` on this run.
    pub fn diagnose(&self, format: &str) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
            .args(["diagnose", "run", "--output-format", format])
            .current_dir(self.dir.path())
            .output()
            .expect("zprobe starts");
        let text = String::from_utf8(output.stdout).expect("reports are UTF-8");
        (output.status.code().expect("zprobe exits by itself"), text)
    }

    /// The standard output of a new run.
    pub fn text(args: &str) -> String {
        let dir = TempDir::new().expect("a temporary directory");
        let output = run(&dir, &args.list(), &[]);
        String::from_utf8(output.stdout).expect("reports are UTF-8")
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {}, verdict {}", self.code, self.report.verdict)?;
        for finding in &self.report.findings {
            writeln!(f, "{finding:#?}")?;
        }
        write!(f, "{}", self.stderr)
    }
}

/// Arguments, as one text or as a list.
pub trait Args {
    /// The arguments, one by one.
    fn list(&self) -> Vec<String>;
}

impl Args for &str {
    fn list(&self) -> Vec<String> {
        self.split_whitespace().map(str::to_owned).collect()
    }
}

impl Args for &String {
    fn list(&self) -> Vec<String> {
        self.as_str().list()
    }
}

impl Args for &Vec<String> {
    fn list(&self) -> Vec<String> {
        self.to_vec()
    }
}

/// A `zprobe run` that has not ended yet.
pub struct Live {
    launcher: Child,
    dir: TempDir,
}

impl Live {
    /// Starts `zprobe run`, and waits until every rank has emitted an event for which `reached` is true.
    pub fn start(args: &str, reached: impl Fn(&Event) -> bool) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let launcher = command(&dir, &args.list(), &["--output-format", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("zprobe starts");
        let live = Self { launcher, dir };
        live.wait_until("the ranks never came to that point", |trace| {
            (0..trace.spec.world_size).all(|rank| {
                trace.events().any(|(sender, event)| sender == Some(rank) && reached(event))
            })
        });
        live
    }

    /// The process id of a rank.
    pub fn pid_of(&self, wanted: usize) -> i32 {
        self.trace()
            .and_then(|trace| {
                trace.events().find_map(|(_, event)| match event {
                    Event::RankSpawned { rank, pid, .. } if *rank == wanted => Some(*pid),
                    _ => None,
                })
            })
            .map(u32::cast_signed)
            .expect("the rank was spawned")
    }

    /// Waits for the end of the run, and checks that its ranks have ended.
    pub fn wait(self) -> Run {
        let pids: Vec<i32> = (0..2).map(|rank| self.pid_of(rank)).collect();
        let output = self.launcher.wait_with_output().expect("zprobe ends");
        for pid in pids {
            assert!(!is_alive(pid), "process {pid} is left");
        }
        Run {
            code: output.status.code().expect("zprobe exits by itself"),
            report: serde_json::from_slice(&output.stdout).expect("a report"),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            dir: self.dir,
        }
    }

    /// Kills zprobe itself, and waits until its ranks have ended, too.
    pub fn kill_launcher(mut self) {
        let pids: Vec<i32> = (0..2).map(|rank| self.pid_of(rank)).collect();
        self.launcher.kill().expect("zprobe runs");
        self.launcher.wait().expect("zprobe ends");
        self.wait_until("the ranks survived their launcher", |_| {
            pids.iter().all(|&pid| !is_alive(pid))
        });
    }

    fn trace(&self) -> Option<Trace> {
        Trace::read(&self.dir.path().join("run")).ok()
    }

    fn wait_until(&self, complaint: &str, reached: impl Fn(&Trace) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.trace().is_some_and(|trace| reached(&trace)) {
            assert!(Instant::now() < deadline, "{complaint}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns true if a process runs; false for a process that waits to be reaped.
fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().starts_with(" Z"))
}
