//! The runs that every launcher makes, and the comparison of their results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::interpreter::{full, python};

/// The number of ranks of every run.
pub const RANKS: usize = 4;

/// A run: flags of `zprobe run`, and the exit code that the run must have.
pub struct Case {
    flags: &'static str,
    code: i32,
}

/// The environment variable that marks all processes of a test; its value is the directory of the run.
pub const MARK: &str = "TEST_OF_LAUNCHERS";

/// Clean runs of each engine, and runs with the boundary leak or a similar bug.
const CASES: &[Case] = &[
    Case { flags: "--engine native --stage 1", code: 0 },
    Case { flags: "--engine native --stage 1 --inject boundary-leak", code: 1 },
    Case { flags: "--engine ddp", code: 0 },
    Case { flags: "--engine ddp --shape late-no-sync", code: 1 },
    Case { flags: "--engine fsdp2", code: 0 },
    Case { flags: "--engine fsdp2 --reduce-every-microbatch", code: 0 },
    Case { flags: "--engine deepspeed --stage 1", code: 0 },
    Case { flags: "--engine deepspeed --stage 2 --offload cpu", code: 0 },
];

/// The number of cases that are run every day; they come first in [`CASES`].
const EVERYDAY: usize = 3;

/// The runs that every launcher makes.
pub fn cases() -> &'static [Case] {
    if full() { CASES } else { &CASES[..EVERYDAY] }
}

/// The command `zprobe run` of a case, with its report in `run/report.json`.
pub fn words(case: &Case) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_zprobe").to_owned();
    let python = python().display().to_string();
    let own = ["run", "--out", "run", "--output-format", "concise", "--ga", "2", "--device", "cpu"];
    let words = own.iter().copied().chain(["--python", &python]).chain(case.flags.split(' '));
    [program].into_iter().chain(words.map(str::to_owned)).collect()
}

/// A command in a directory of its own, without variables of zprobe and of launchers.
pub fn command(words: &[String], dir: &Path) -> Command {
    let mut command = Command::new(&words[0]);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["ZPROBE_", "SLURM_", "OMPI_", "PMI", "MASTER_"].iter().any(|it| name.starts_with(it)) {
            command.env_remove(&*name);
        }
    }
    command.args(&words[1..]).current_dir(dir).env("DS_ACCELERATOR", "cpu").env(MARK, dir);
    command
}

/// The report of a case, made by a single zprobe process.
fn plain(case: &Case) -> Value {
    let dir = TempDir::new().unwrap();
    let mut words = words(case);
    words.extend(["--nproc-per-node".to_owned(), RANKS.to_string()]);
    let output = command(&words, dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(case.code), "{}", said(&output));
    report(dir.path())
}

fn report(dir: &Path) -> Value {
    let text = fs::read_to_string(dir.join("run/report.json")).unwrap();
    let mut report: Value = serde_json::from_str(&text).unwrap();
    for rank in report["ranks"].as_array_mut().unwrap() {
        rank["pid"] = Value::Null;
    }
    report
}

/// Makes every run both plainly and with a launcher, and compares the reports. `launch` returns the
/// launcher's success and its output.
pub fn compare(launcher: &str, launch: &mut dyn FnMut(&Case, &Path) -> Launched) {
    for case in cases() {
        let dir = TempDir::new().unwrap();
        let launched = launch(case, dir.path());
        let told = format!("{launcher}: {}\n{}", case.flags, launched.said);
        // torchrun has an own exit code for workers that failed.
        assert_eq!(launched.succeeded, case.code == 0, "{told}");
        assert!(dir.path().join("run/report.json").exists(), "{told}");
        assert_eq!(report(dir.path()), plain(case), "{told}");
        assert_eq!(left(dir.path()), Vec::<PathBuf>::new(), "{told}");
    }
}

/// The end of a launcher.
pub struct Launched {
    /// True if the launcher exited with 0.
    pub succeeded: bool,
    /// The whole output of the launcher.
    pub said: String,
}

impl Launched {
    pub fn of(output: &Output) -> Self {
        Self { succeeded: output.status.success(), said: said(output) }
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The remaining processes that were started with the mark of this directory.
pub fn left(dir: &Path) -> Vec<PathBuf> {
    let mark = format!("{MARK}={}", dir.display());
    let has_mark = |path: &PathBuf| {
        let variables = fs::read(path.join("environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(has_mark).collect()
}

/// The path of a program that a launcher needs; `None`, with a printed message, if the program is missing.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin".into(), "/sbin".into()];
    let found = std::env::split_paths(&path).chain(sbin).map(|dir| dir.join(name));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name}; `cargo xtask test --launchers` installs it");
    }
    found
}
