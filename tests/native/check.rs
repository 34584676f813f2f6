//! The standard suite on the native engine, and probes that ask for faults.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;
use zprobe_report::suite::{Status, Suite};

/// Runs `zprobe check` in this directory, and returns its exit code and report.
fn check(dir: &TempDir, args: &[&str]) -> (i32, Suite) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.args(["check", "--engine", "native", "--output-format", "json"]).args(args);
    let output: Output = command.current_dir(dir.path()).output().unwrap();
    let suite = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), suite)
}

#[test]
fn the_standard_suite_is_clean_on_the_native_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (code, suite) = check(&dir, &[]);
    for case in &suite.cases {
        assert_eq!(case.status, Status::Passed, "{case:#?}");
    }
    assert!(code == 0 && suite.cases.len() >= 24);
    let left = fs::read_dir(dir.path().join(".zprobe/check")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left of clean runs");
}

#[test]
fn what_zprobes_own_engine_passes_alone_is_green_only_where_it_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let check = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command.args(["check", "stage1-bf16", "--python", "/does/not/exist"]).args(more);
        command.current_dir(dir.path()).output().unwrap()
    };
    let output = check(&[]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stdout.starts_with("NOT CHECKED  no real engine was checked"), "{stdout}");
    assert!(stdout.contains("1 of 1 probe passed, 1 skipped"), "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("error: no real engine was checked"), "{stderr}");
    assert_eq!(check(&["--exit-zero"]).status.code(), Some(2));
    assert_eq!(check(&["--engine", "native"]).status.code(), Some(0));
}

#[test]
fn a_fault_that_a_probe_asks_for_is_a_failure_or_what_it_expects() {
    let dir = tempfile::tempdir().unwrap();
    let probe = |name: &str, expect: &str| {
        let text = format!(
            "description = 'The leak'\nexpect = '{expect}'\n[run]\nga = 2\ninject = 'boundary-leak'\n"
        );
        fs::write(dir.path().join(name), text).unwrap();
    };
    probe("leak.toml", "clean");
    probe("known.toml", "ZP101");
    probe("other.toml", "ZP104");
    let (code, suite) = check(&dir, &["leak.toml", "known.toml", "other.toml", "stage1-bf16"]);
    let statuses: Vec<(&str, Status)> =
        suite.cases.iter().map(|case| (case.probe.as_str(), case.status)).collect();
    let expected = [
        ("known", Status::Passed),
        ("leak", Status::Failed),
        ("other", Status::Failed),
        ("stage1-bf16", Status::Passed),
    ];
    assert_eq!((code, statuses), (1, expected.to_vec()));
    let codes = suite.cases[1].findings.iter().map(|it| it.finding.code.as_str());
    assert_eq!(codes.collect::<Vec<_>>(), ["ZP101"]);
    let json =
        fs::read(dir.path().join(suite.cases[1].run_dir.as_ref().unwrap()).join("report.json"));
    assert!(String::from_utf8_lossy(&json.unwrap()).contains("ZP101"));
}
