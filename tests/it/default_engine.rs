//! The engine of `zprobe run` without `--engine`: that of the environment, and never a silent replacement.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A directory with the stand-in for an interpreter at `venv/bin/python`, which has the given modules and fails as a
/// rank.
fn place(modules: &[&str]) -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a directory");
    let python = dir.path().join("venv/bin/python");
    fs::create_dir_all(dir.path().join("venv/bin")).expect("a directory");
    let file = |name: &str| if modules.contains(&name) { "\"/file\"" } else { "null" };
    let answer = format!(r#"{{"torch": {}, "deepspeed": {}}}"#, file("torch"), file("deepspeed"));
    let script = format!("#!/bin/sh\n[ \"$1\" = -c ] && echo '{answer}' && exit 0\nexit 7\n");
    fs::write(&python, script).expect("a stand-in");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("a stand-in");
    fs::write(dir.path().join("venv/pyvenv.cfg"), "").expect("an environment");
    (dir, python)
}

/// The exit code and the messages of `zprobe run` with these arguments.
fn run(dir: &TempDir, args: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("ZPROBE_") || ["VIRTUAL_ENV", "CONDA_PREFIX"].contains(&&*name) {
            command.env_remove(name);
        }
    }
    command.args(["run", "--no-config", "--out", "out"]).args(args).current_dir(dir.path());
    let output = command.envs(variables.iter().copied()).output().expect("zprobe starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("messages are UTF-8"))
}

#[test]
fn the_engine_is_that_of_the_named_or_active_environment() {
    for (modules, engine) in [(&["torch", "deepspeed"][..], "deepspeed"), (&["torch"], "ddp")] {
        let (dir, _) = place(modules);
        for (args, variables) in
            [(&["--python", "venv"][..], &[][..]), (&[], &[("VIRTUAL_ENV", "venv")][..])]
        {
            let (_, said) = run(&dir, args, variables);
            let note =
                format!("note: --engine {engine}, because it is installed in venv/bin/python");
            assert!(said.contains(&note), "{modules:?} {args:?}: {said}");
            fs::remove_dir_all(dir.path().join("out")).ok();
        }
    }
}

#[test]
fn an_environment_without_an_engine_is_an_error_if_it_was_named() {
    let (dir, python) = place(&[]);
    let (code, said) = run(&dir, &["--python", "venv"], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has neither DeepSpeed nor torch"), "{said}");
    fs::remove_file(python).unwrap();
    let (code, said) = run(&dir, &["--python", "venv"], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot look up the engines of venv/bin/python"), "{said}");
}

#[test]
fn a_deepspeed_file_is_run_by_deepspeed() {
    let (dir, _) = place(&["torch"]);
    fs::write(dir.path().join("ds.json"), r#"{"train_micro_batch_size_per_gpu": 2}"#).unwrap();
    let (code, said) = run(&dir, &["--deepspeed-config", "ds.json", "--python", "venv"], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("DeepSpeed is not installed in venv/bin/python"), "{said}");
}

#[test]
fn flags_that_ddp_lacks_are_for_the_native_engine() {
    let (dir, _) = place(&["torch"]);
    let (_, said) = run(&dir, &["--stage", "1", "--python", "venv"], &[]);
    assert!(said.contains("note: ddp is installed in venv/bin/python"), "{said}");
    assert!(said.contains("zprobe's own engine runs"), "{said}");
}
