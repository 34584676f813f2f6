//! `zprobe bisect`: the requests that it refuses, and the exit codes of a step of `git bisect run`. The tests
//! need no engine: a program replaces a Python that has an engine. `cargo xtask test` bisects real releases.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

use tempfile::TempDir;

fn bisect(dir: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") {
            command.env_remove(name);
        }
    }
    command.arg("bisect").args(args).current_dir(dir.path()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_search_that_cannot_be_made_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let ends = ["--good", "0.18.4", "--bad", "0.18.9"];
    let leak = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/traces/boundary-leak");
    for (args, message) in [
        (&["--package", "deepspeed"][..], "name an engine with --engine"),
        (&["--package", "numpy", "--engine", "deepspeed"], "it uses torch and deepspeed"),
        (
            &["--package", "deepspeed", "--engine", "deepspeed", "--fixed"],
            "must be older than the good one",
        ),
        (&["--package", "deepspeed", "--engine", "deepspeed", "--jobs", "0"], "--jobs 0"),
        (&["--package", "deepspeed", leak], "the native engine does not use it"),
    ] {
        let output = bisect(&dir, &[args, &ends].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).contains(message), "{args:?}: {}", said(&output));
    }
    let output = bisect(&dir, &["--engine", "deepspeed"]);
    assert!(said(&output).contains("--package <NAME>"), "{}", said(&output));
}

#[test]
fn a_step_that_tells_nothing_is_skipped_and_an_error_ends_the_bisection() {
    let dir = tempfile::tempdir().unwrap();
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/ranks/swept.py");
    let step = |args: &[&str]| bisect(&dir, &[&["step", "--engine", "ddp"], args].concat());
    for (args, code) in [
        // These runs crash, and end inconclusively.
        (&["--python", python, "--repeat", "2", "--ga", "1"][..], 125),
        (&["--python", python, "--repeat", "2", "--ga", "2"], 125),
        (&["--python", "/does/not/exist"], 128),
        (&["--python", python, "--code", "ZP000"], 128),
        (&["--no-such-flag"], 128),
    ] {
        let output = step(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
    }
    assert_eq!(bisect(&dir, &["step", "--help"]).status.code(), Some(0));
}

#[test]
fn commits_that_cannot_be_searched_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let engine = ["--engine", "deepspeed", "--package", "deepspeed"];
    for (args, message) in [
        (&["--good", "master~3", "--bad", "0.18.9"][..], "--good master~3: not a version"),
        (&["--good", "0.18.4", "--bad", "v0.18.9"], "needs --git with the repository"),
        (&["--good", "0.18.4", "--bad", "0.18.9", "--first-parent"], "--git <DIR|URL>"),
        (&["--good", "a", "--bad", "b", "--git", "nowhere"], "--git nowhere: no such directory"),
        (&["--good", "a", "--bad", "b", "--git", "."], "--git .: not a git repository"),
    ] {
        let output = bisect(&dir, &[&engine, args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).contains(message), "{args:?}: {}", said(&output));
    }
    let torch =
        ["--engine", "ddp", "--package", "torch", "--good", "a", "--bad", "b", "--git", "."];
    let output = bisect(&dir, &torch);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("commits of torch are not built here"), "{}", said(&output));
}

#[test]
fn without_git_the_search_says_that_it_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["bisect", "--engine", "deepspeed", "--package", "deepspeed", "--git", "."])
        .args(["--good", "a", "--bad", "b"])
        .env("PATH", dir.path())
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("cannot start git, which --git needs"), "{}", said(&output));
}
