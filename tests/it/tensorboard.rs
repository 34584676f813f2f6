//! The events of `--export-tensorboard`, as the JSON that Python reads, and the refusal without TensorBoard's package.
//! `tests/python/test_tensorboard.py` reads the events that Python writes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use zprobe_diagnose::diagnose;
use zprobe_model::trace::Trace;
use zprobe_report::render::tensorboard;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces")
}

fn events(name: &str) -> Value {
    let trace = Trace::read(&traces().join(name)).unwrap();
    serde_json::from_str(&tensorboard(&diagnose(&trace), &trace).unwrap()).unwrap()
}

/// The values of a tag of scalars, by step.
fn scalars(events: &Value, tag: &str) -> Vec<(u64, f64)> {
    let all = events["scalars"].as_array().unwrap().iter().filter(|it| it[0] == tag);
    all.map(|it| (it[1].as_u64().unwrap(), it[3].as_f64().unwrap())).collect()
}

#[test]
fn every_recorded_trace_has_one_value_of_a_tag_in_each_step() {
    for entry in fs::read_dir(traces()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let events = events(&name);
        let start = events["time"].as_f64().unwrap();
        let mut seen = BTreeSet::new();
        for scalar in events["scalars"].as_array().unwrap() {
            let key = (scalar[0].to_string(), scalar[1].as_u64());
            assert!(seen.insert(key), "{name}: twice: {scalar}");
            assert!(scalar[2].as_f64().unwrap() >= start && scalar[3].is_number(), "{scalar}");
        }
        for picture in events["pictures"].as_array().unwrap() {
            let lines = picture[3].as_array().unwrap();
            let width = |line: &Value| line.as_array().unwrap().len();
            assert!(lines.iter().all(|line| width(line) == width(&lines[0])), "{name}: {picture}");
            assert!(width(&lines[0]) > 0, "{name}: {picture}");
        }
    }
}

#[test]
fn a_leak_is_a_picture_in_the_colours_of_the_page() {
    let events = events("boundary-leak");
    let tag = "weights/optimizer's input/rank 0";
    let pictures = events["pictures"].as_array().unwrap();
    let picture = pictures.iter().find(|it| it[0] == tag).unwrap();
    // Microbatch 1 of rank 0 is there twice, and that of rank 1 is lost.
    let expected = serde_json::json!([["#e9ecef", "#a94a00"], ["#e9ecef", "#1b63a8"]]);
    assert_eq!(picture[3], expected);
    assert!(events["report"].as_str().unwrap().contains("ZP101"), "{}", events["report"]);
}

#[test]
fn loss_scales_and_learning_rates_are_scalars() {
    let scales = scalars(&events("clean-stage-2-fp16"), "loss scale/rank 0");
    assert_eq!(scales, [(0, 64.0), (1, 64.0)]);
    let rates = scalars(&events("script-clean"), "learning rate/optimizer 0, group 0/rank 0");
    assert!(!rates.is_empty() && rates.iter().all(|(_, rate)| *rate > 0.0), "{rates:?}");
}

#[test]
fn what_cannot_be_written_is_refused_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    fs::write(&python, "#!/bin/sh\necho '{\"tensorboard\": null}'\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for (to, said) in [
        ("logs", "tensorboard is not installed in "),
        ("logs", "(`pip install tensorboard`)"),
        ("missing/logs", "there is no directory missing"),
        ("file", "this is a file"),
        ("-", "events need a directory"),
    ] {
        for command in [
            &["run", "--rank-program", "/bin/false", "--export-tensorboard", to][..],
            &["exec", "--export-tensorboard", to, "--", "false"],
            &["show", "--export-tensorboard", to],
        ] {
            let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
                .args(command)
                .current_dir(&dir)
                .env("ZPROBE_PYTHON", &python)
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{command:?}: {stderr}");
            assert!(stderr.contains(said), "{command:?}: {stderr}");
            assert!(stderr.contains("--export-tensorboard"), "{command:?}: {stderr}");
        }
    }
    assert!(!dir.path().join(".zprobe").exists() && !dir.path().join("logs").exists());
}

#[test]
fn show_and_exec_take_the_python_that_writes_the_events_by_a_flag() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("other");
    fs::write(&python, "#!/bin/sh\necho '{\"tensorboard\": null}'\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let said = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command.args(words).current_dir(&dir).env_remove("ZPROBE_PYTHON");
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
        stderr
    };
    for (command, script) in [("show", &[][..]), ("exec", &["--", "false"])] {
        let flags = [command, "--python", "./other", "--export-tensorboard", "logs"];
        let refused = said(&[&flags, script].concat());
        assert!(refused.contains("tensorboard is not installed in ./other"), "{refused}");
        // The flag does not choose the Python of the script.
        let alone = said(&[&flags[..3], script].concat());
        assert!(alone.contains("--export-tensorboard"), "{alone}");
    }
}
