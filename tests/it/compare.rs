//! Tests of `zprobe compare` on recorded runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use zprobe_lab::compare::Comparison;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces").join(name)
}

fn compare(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zprobe")).arg("compare").args(args).output().unwrap()
}

fn of(a: &str, b: &str) -> (Option<i32>, Comparison) {
    let [a, b] = [a, b].map(|name| fixture(name).display().to_string());
    let output = compare(&[&a, &b, "--output-format", "json"]);
    let comparison = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), comparison)
}

#[test]
fn a_run_is_the_same_as_itself_in_every_number() {
    for name in ["clean-mlp", "boundary-leak"] {
        let (code, comparison) = of(name, name);
        assert_eq!((code, comparison.same), (Some(0), true), "{name}");
        assert!(comparison.must_be_equal());
        for step in &comparison.steps {
            assert_eq!(step.loss.a, step.loss.b);
            assert_eq!(step.parameters.unwrap().differing, 0);
        }
        assert!(!comparison.steps.is_empty());
    }
}

#[test]
fn a_leak_differs_from_a_clean_run_in_verdict_finding_and_weights_at_the_place() {
    let (code, comparison) = of("clean-mlp", "boundary-leak-mlp");
    assert_eq!((code, comparison.same), (Some(1), false));
    assert_eq!(comparison.findings.only_b, ["ZP101"]);
    assert!(comparison.findings.only_a.is_empty());
    assert!(comparison.weights_compared && !comparison.weights.is_empty());
    let settings: Vec<&str> = comparison.settings.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(settings, ["inject"]);
    // The data and the first parameters are the same, so the first step's loss is, too. The parameters after
    // the first step differ.
    let first = &comparison.steps[0];
    assert!(first.loss.a.is_some());
    assert_eq!(first.loss.a, first.loss.b);
    assert!(first.parameters.unwrap().differing > 0);
}

#[test]
fn a_report_alone_is_compared_without_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let run = fixture("clean-mlp").display().to_string();
    let exported = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["diagnose", &run, "--export-json"])
        .arg(&report)
        .output()
        .unwrap();
    assert_eq!(exported.status.code(), Some(0));
    let output = compare(&[&run, &report.display().to_string(), "--output-format", "json"]);
    let comparison: Comparison = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(comparison.steps.iter().all(|step| step.parameters.is_none()));
}

/// The output of a comparison of two recorded runs, without this machine's paths.
fn printed(form: &str) -> String {
    let [a, b] = ["clean-mlp", "boundary-leak-mlp"].map(|name| fixture(name).display().to_string());
    let output = compare(&[&a, &b, "--output-format", form]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.replace(env!("CARGO_MANIFEST_DIR"), ".")
}

#[test]
fn a_comparison_in_words() {
    insta::assert_snapshot!(printed("full"));
}

#[test]
fn a_comparison_for_an_issue() {
    insta::assert_snapshot!(printed("markdown"));
}

#[test]
fn a_crashed_run_is_a_crash_of_the_comparison_and_an_inconclusive_one_is_inconclusive() {
    assert_eq!(of("clean-accumulator", "rank-dies").0, Some(3));
    let dir = tempfile::tempdir().unwrap();
    let trace = std::fs::read_to_string(fixture("clean-accumulator").join("trace.jsonl")).unwrap();
    let half: Vec<&str> = trace.lines().take(trace.lines().count() / 2).collect();
    std::fs::write(dir.path().join("trace.jsonl"), half.join("\n") + "\n").unwrap();
    let cut = dir.path().display().to_string();
    assert_eq!(compare(&[&cut, &cut]).status.code(), Some(4));
}

#[test]
fn the_gap_of_the_last_step_and_the_largest_gap_of_the_norms_are_said() {
    let (_, comparison) = of("clean-mlp", "boundary-leak-mlp");
    let last = comparison.steps.last().unwrap();
    assert_eq!(comparison.steps[0].loss_gap(), Some(0.0), "the same data, the same start");
    assert!(last.norm_gap_percent().unwrap() > 5.0, "a microbatch of one rank alone");
    let text = printed("full");
    assert!(text.contains(&format!("(step {})", last.step)), "{text}");
    assert!(text.contains("final loss gap: "), "{text}");
    assert!(text.contains("largest norm gap: "), "{text}");
}

#[test]
fn an_interrupted_comparison_starts_no_second_run_and_says_where_the_first_is() {
    let dir = tempfile::tempdir().unwrap();
    let program = fixture("../ranks/rank.py").display().to_string();
    let common = format!("--nproc-per-node 1 --rank-program {program} -- sleeps");
    let zprobe = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["compare", "--a", &common, "--b", &common, "--out", "both"])
        .current_dir(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !dir.path().join("both/a/rank-0.here").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(zprobe.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = zprobe.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let said = "--b: interrupted before it was started; nothing was compared, and the finished runs are in both";
    assert!(stderr.contains(said), "{stderr}");
    assert!(dir.path().join("both/a/report.json").exists());
    assert!(!dir.path().join("both/b").exists());
}

#[test]
fn what_cannot_be_compared_is_a_usage_error_that_says_what_to_give() {
    for (args, said) in [
        (&[][..], "give two recorded runs"),
        (&["/nowhere", "/nowhere"][..], "there is no such path"),
        (&["--a", "--ga 2", "--b", "--ga \"2"][..], "a quotation mark is not closed"),
        (&["--a", "--ga 0", "--b", "--ga 2"][..], "--ga"),
        (&["--a", "--out x", "--b", "--ga 2"][..], "--out"),
    ] {
        let output = compare(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
}
