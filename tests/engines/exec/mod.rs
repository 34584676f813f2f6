//! Tests of `zprobe exec` on real scripts: those of `examples/train`, unmodified, and with mistakes.
//!
//! The tests that train need an interpreter with torch and DeepSpeed, and are ignored by default: set
//! `ZPROBE_TEST_PYTHON` to the interpreter and run the tests with `cargo test --test engines exec:: --
//! --include-ignored`. With `ZPROBE_TEST_FULL` the tests try every configuration and every mistake.

mod blind;
mod broken;
mod commands;
mod eyes;
mod frameworks;
mod matrix;
mod meshes;
mod mistakes;
mod observe;
mod stacks;
mod suite;
mod survives;
mod turns;
mod unusual;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use zprobe_report::Report;

use super::interpreter::{full, python};

/// The result of a run of a script.
struct Run {
    code: i32,
    /// The report; `None` if there was no answer.
    report: Option<Report>,
    stdout: String,
    stderr: String,
    dir: TempDir,
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a command under `zprobe exec`, in a new directory with the example scripts.
fn exec(options: &[&str], command: &[&str]) -> Run {
    exec_in(scripts(), options, command)
}

/// A new directory with the example scripts.
fn scripts() -> TempDir {
    copy_of(&file("examples/train"))
}

/// A new directory with a copy of the scripts in `scripts`.
fn copy_of(scripts: &Path) -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    for entry in fs::read_dir(scripts).expect("scripts") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|ending| ending == "py" || ending == "json") {
            fs::copy(&path, dir.path().join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    dir
}

fn exec_in(dir: TempDir, options: &[&str], command: &[&str]) -> Run {
    let Output { status, stdout, stderr } =
        zprobe(&dir, options, command).output().expect("zprobe");
    let report = fs::read_to_string(dir.path().join("run/report.json")).ok();
    Run {
        code: status.code().expect("zprobe exits by itself"),
        report: report.map(|text| serde_json::from_str(&text).expect("a report")),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
        dir,
    }
}

fn zprobe(dir: &TempDir, options: &[&str], command: &[&str]) -> Command {
    let mut zprobe = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    zprobe.args(["exec", "--out", "run", "--output-format", "concise"]).args(options).arg("--");
    zprobe.args(command).current_dir(dir.path());
    zprobe.env("DS_ACCELERATOR", "cpu").env("OMP_NUM_THREADS", "1");
    zprobe
}

/// Trains with an example script, on forked ranks. Lightning's scripts start their own ranks, whose number is
/// in the flags.
fn train(dir: TempDir, options: &[&str], ranks: usize, script: &str, flags: &str) -> Run {
    let (python, ranks_py, ranks) =
        (python(), file("tests/engines/exec/ranks.py"), ranks.to_string());
    let mut command = vec![text(&python)];
    if !script.starts_with("lightning") {
        command.extend([text(&ranks_py), &ranks]);
    }
    command.push(script);
    command.extend(flags.split_whitespace());
    exec_in(dir, options, &command)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in Unicode")
}

impl Run {
    /// The report of the run, which must exist.
    fn report(&self) -> &Report {
        self.report
            .as_ref()
            .unwrap_or_else(|| panic!("no report:\n{}\n{}", self.stdout, self.stderr))
    }

    /// The codes and messages of the findings, one per line.
    fn findings(&self) -> String {
        let findings = self.report().findings.iter();
        findings.map(|finding| format!("{} {}\n", finding.code, finding.message)).collect()
    }
}
