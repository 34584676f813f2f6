//! `zprobe doctor`, with interpreters that work and others that do not. The tests need no torch.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use zprobe_lab::doctor::{InterpreterError, PythonFacts};

/// A fake interpreter that runs this shell script, whatever its arguments are.
fn interpreter(script: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("python3");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

fn zprobe(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zprobe")).args(args).output().unwrap()
}

#[test]
fn a_python_answers_for_itself() {
    let python = PythonFacts::ask("python3".as_ref(), Duration::from_secs(120)).unwrap();
    assert!(python.version.starts_with("3."), "{python:?}");
}

#[test]
fn an_interpreter_that_dies_is_quoted() {
    let (_dir, python) = interpreter("echo 'libcudart.so.13: not found' >&2; exit 127");
    let error = PythonFacts::ask(&python, Duration::from_secs(60)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("libcudart.so.13: not found"), "{message}");
    assert!(message.contains("127"), "{message}");
}

#[test]
fn an_interpreter_that_hangs_is_ended() {
    let (_dir, python) = interpreter("exec sleep 1000");
    let error = PythonFacts::ask(&python, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, InterpreterError::Late { .. }), "{error}");
}

#[test]
fn without_any_engine_the_exit_code_says_that_nothing_can_run() {
    // A copy of the program without a rank program next to it.
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("zprobe");
    fs::copy(env!("CARGO_BIN_EXE_zprobe"), &alone).unwrap();
    let output =
        Command::new(alone).args(["doctor", "--python", "/does/not/exist"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    for engine in ["native", "deepspeed", "ddp", "fsdp1", "fsdp2", "pipeline", "zero-redundancy"] {
        assert!(stdout.contains(&format!("missing  {engine}")), "{engine}: {stdout}");
    }
    assert!(stdout.contains("cannot start /does/not/exist"), "{stdout}");
    assert!(
        stdout.ends_with(
            "\n0 of 7 engines can run here; the lines `to do` above say what is missing\n"
        )
    );
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("asking /does/not/exist for its engines"), "{stderr}");
    assert_eq!(output.status.code(), Some(2), "{stdout}");
}

#[test]
fn programs_are_told_what_people_are_told() {
    let output = zprobe(&["doctor", "--python", "/does/not/exist", "--output-format", "json"]);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        answer["python"].as_str().unwrap().starts_with("/does/not/exist (named by"),
        "{answer}"
    );
    let ddp =
        answer["engines"].as_array().unwrap().iter().find(|it| it["subject"] == "ddp").unwrap();
    assert_eq!(ddp["state"], "missing");
    assert!(!answer["surroundings"].as_array().unwrap().is_empty(), "{answer}");
}

#[test]
fn one_engine_is_enough() {
    let (_dir, python) = interpreter(
        r#"echo '{"executable": "python3", "version": "3.11.7", "torch": {"value": "2.6.0"},
        "ddp": {"value": true}, "deepspeed": {"problem": "ImportError: no"}}'"#,
    );
    let python = python.to_str().unwrap();
    let output = zprobe(&["doctor", "--python", python]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    let output = zprobe(&["list", "engines", "--python", python]);
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(listed.contains("ok       ddp              torch 2.6.0"), "{listed}");
    assert!(listed.contains("broken   deepspeed        ImportError: no"), "{listed}");
    assert!(stdout.contains(&listed), "{stdout}");
}

#[test]
fn only_engines_are_tried_with_a_python() {
    let output = zprobe(&["list", "rules", "--python", "python3"]);
    assert_eq!(output.status.code(), Some(2));
}

/// A directory with a fake virtual environment. `found` is its answer about packages as JSON, in which a
/// missing package is null.
fn environment(found: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("venv/bin");
    fs::create_dir_all(&bin).unwrap();
    let python = bin.join("python");
    fs::write(&python, format!("#!/bin/sh\necho '{found}'\n")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// The exit code and the output of `zprobe` in a directory whose environment is active.
fn active(dir: &TempDir, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.args(args).current_dir(dir.path()).env("VIRTUAL_ENV", dir.path().join("venv"));
    let output = command.env_remove("ZPROBE_PYTHON").output().unwrap();
    let text = |bytes: Vec<u8>| {
        String::from_utf8(bytes).unwrap().replace(dir.path().to_str().unwrap(), "HERE")
    };
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn an_engine_that_is_not_installed_is_one_line_before_anything_is_started() {
    let dir = environment(r#"{"torch": "torch/__init__.py", "deepspeed": null}"#);
    let told = "error: DeepSpeed is not installed in HERE/venv/bin/python (chosen because \
                VIRTUAL_ENV=HERE/venv); install it there (`pip install deepspeed`), or name another \
                Python with --python\n";
    for args in [
        &["run", "--engine", "deepspeed"][..],
        &["run", "--engine", "deepspeed", "--repeat", "2"],
        &["sweep", "--engine", "deepspeed", "--limit", "1"],
    ] {
        let (code, stdout, stderr) = active(&dir, args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}");
        // A sweep first prints its number of runs.
        assert_eq!(stderr.split_inclusive('\n').next_back(), Some(told), "{args:?}");
        assert!(stderr.lines().count() <= 2, "{args:?}: {stderr}");
        assert!(!dir.path().join(".zprobe").exists(), "{args:?}");
    }
    let (code, _, stderr) = active(&dir, &["run", "--engine", "ddp", "--python", "gone"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.starts_with("error: no Python with the ddp engine was found (named by --python"),
        "{stderr}"
    );
    assert!(stderr.contains("cannot start gone"), "{stderr}");
}

#[test]
fn the_doctor_says_which_python_it_asks_and_why() {
    let dir = environment("{}");
    let (_, stdout, _) = active(&dir, &["doctor"]);
    let told = "Python HERE/venv/bin/python (chosen because VIRTUAL_ENV=HERE/venv)\n";
    assert!(stdout.starts_with(told), "{stdout}");
    let (_, stdout, _) = active(&dir, &["doctor", "--python", "venv"]);
    assert!(stdout.starts_with("Python venv/bin/python (named by --python"), "{stdout}");
}
