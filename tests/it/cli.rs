//! The command line: refused requests, and the messages about them. The tests need no libtorch.

use std::path::Path;
use std::process::{Command, Output};

use regex::Regex;

fn zprobe(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") {
            command.env_remove(name);
        }
    }
    command.args(args).output().expect("zprobe starts")
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

/// The standard error of a refused command, which must exit with 2 and print nothing to stdout. Paths of this
/// machine are replaced.
fn refusal(args: &[&str]) -> String {
    let output = zprobe(args);
    let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{args:?}");
    let python = Regex::new(r"\(/[^()]*/python[0-9.]*\)").expect("a valid expression");
    python.replace_all(&stderr, "(PYTHON)").replace(env!("CARGO_MANIFEST_DIR"), "REPOSITORY")
}

#[test]
fn what_cannot_be_run_is_refused_with_what_to_do_instead() {
    let refused = [
        &["run", "--stage", "5"][..],
        &["run", "--stage", "2", "--dataflow", "accumulator"],
        &["run", "--dataflow", "accumulator", "--overlap-comm"],
        &["run", "--ga", "0"],
        &["run", "--ga", "x"],
        &["run", "--seed=-1"],
        &["run", "--nproc-per-node", "0"],
        &["run", "--nproc-per-node", "many"],
        &["run", "--engine", "ddp", "--nproc-per-node", "gpu"],
        &["run", "--engine", "deepspeed", "--device", "cuda"],
        &["run", "--engine", "pipeline", "--device", "gpu"],
        &["run", "--engine", "fsdp2", "--backend", "nccl"],
        &["run", "--device", "cpu", "--backend", "nccl"],
        &["run", "--device", "cpu", "--nproc-per-node", "gpu"],
        &["run", "--engine", "ddp", "--shape", "unused-always", "infinity-on-one-rank"],
        &["run", "--engine", "ddp", "--model", "mlp", "--shape", "frozen"],
        &["run", "--dtype", "fp16", "--loss-scale", "65536"],
        &["run", "--dtype", "fp32", "--grad-accum-dtype", "bf16"],
        &["run", "--engine", "ddp", "--stage", "2"],
        &["run", "--shape", "tuple-output"],
        &["run", "--engine", "native", "--static-graph"],
        &["run", "--ga", "20000", "--grad-accum-dtype", "bf16"],
        &["run", "--inject", "dead-hooks"],
        &["run", "--timeout", "0"],
        &["diagnose", "/does/not/exist"],
        &["explain", "ZP000"],
    ];
    let messages: Vec<String> = refused
        .iter()
        .map(|args| format!("$ zprobe {}\n{}", args.join(" "), refusal(args)))
        .collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn everything_that_is_wrong_with_a_request_is_said_at_once() {
    insta::assert_snapshot!(refusal(&[
        "run",
        "--engine=ddp",
        "--stage=2",
        "--inject=dead-hooks",
        "--ga=0",
        "--gradient-clipping=-1",
        "--static-graph",
        "--shape=unused-alternating,experts,tuple-output,dict-output",
        "--device=cuda",
    ]));
}

#[test]
fn every_command_with_runs_says_the_same_of_their_timeout() {
    for command in ["run", "check", "sweep"] {
        let help = String::from_utf8(zprobe(&[command, "--help"]).stdout).expect("help is UTF-8");
        let help = help.split_once("--timeout <SECS>").expect("the flag is there").1;
        let words: Vec<&str> = help.split_whitespace().take(17).collect();
        let rule = "Seconds of silence after which a rank counts as hung [default: 60; real engines: \
                    180] [env: ZPROBE_TIMEOUT=]";
        assert_eq!(words.join(" "), rule, "zprobe {command}");
    }
}

#[test]
fn a_deepspeed_file_that_needs_more_than_there_is_names_every_setting() {
    let file = fixture("deepspeed/broken/not_there_yet.json");
    let message = refusal(&["run", "--engine", "native", "--deepspeed-config", &file]);
    for place in [
        "not_there_yet.json:4:3: prescale_gradients, ",
        "zero_optimization.offload_optimizer.device (14:28), ",
        "compression_training (23:3): zprobe's native engine does not support this value",
        "not_there_yet.json:22:18: optimizer.type: ",
    ] {
        assert!(message.contains(place), "{place}: {message}");
    }
}

#[test]
fn a_run_directory_is_never_overwritten() {
    let recorded = fixture("traces/clean-accumulator");
    let message = refusal(&["run", "--rank-program", "true", "--out", &recorded]);
    assert!(message.contains("holds a recorded run already"), "{message}");
}

#[test]
fn a_program_that_does_not_start_leaves_no_recorded_run() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().display().to_string();
    for _ in 0..2 {
        let message = refusal(&["run", "--rank-program", "/does/not/exist", "--out", &out]);
        assert!(message.contains("cannot start a rank with /does/not/exist"), "{message}");
    }
}

#[test]
fn zprobe_does_not_start_itself_once_per_rank_of_torchrun() {
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["run", "--stage", "1"])
        .env("TORCHELASTIC_RUN_ID", "none")
        .output()
        .expect("zprobe starts");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn exit_zero_hides_the_verdict_from_the_exit_code_alone() {
    let recorded = fixture("traces/boundary-leak");
    let plain = zprobe(&["diagnose", &recorded, "--output-format", "json"]);
    let hidden = zprobe(&["diagnose", &recorded, "--output-format", "json", "--exit_zero"]);
    assert_eq!((plain.status.code(), hidden.status.code()), (Some(1), Some(0)));
    assert_eq!(plain.stdout, hidden.stdout);
}

#[test]
fn the_exported_report_is_the_one_on_standard_output() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("report.json");
    let recorded = fixture("traces/boundary-leak");
    let output = zprobe(&[
        "diagnose",
        &recorded,
        "--output-format",
        "json",
        "--export-json",
        &file.display().to_string(),
    ]);
    assert_eq!(std::fs::read(&file).expect("the exported report"), output.stdout);
}

#[test]
fn an_export_to_a_dash_is_on_standard_output_and_the_report_is_not() {
    let recorded = fixture("traces/boundary-leak");
    let output = zprobe(&["show", &recorded, "--export-json", "-"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["findings"][0]["code"], "ZP101");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("ZP101 boundary-leak"), "{stderr}");
    assert!(!Path::new("-").exists());
    let twice = refusal(&["show", &recorded, "--export-json", "-", "--export-junit", "-"]);
    assert!(twice.contains("only one export can be written to standard output"), "{twice}");
}

#[test]
fn an_export_that_cannot_be_written_is_refused_before_the_run() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let of_a_run = ["--export-trace"];
    let of_both = ["--export-json", "--export-html", "--export-junit", "--export-sarif"];
    for flag in of_both.into_iter().chain(of_a_run) {
        for (file, said) in [("missing/x", "there is no directory missing"), (".", "a directory")] {
            for command in [
                &["run", "--rank-program", "/bin/false", flag, file][..],
                &["exec", flag, file, "--", "false"],
                &["check", "--engine", "native", flag, file],
            ] {
                if command[0] == "check" && of_a_run.contains(&flag) {
                    continue;
                }
                let program = env!("CARGO_BIN_EXE_zprobe");
                let output = Command::new(program).args(command).current_dir(&dir).output();
                let output = output.expect("zprobe starts");
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(2), "{command:?}: {stderr}");
                assert!(stderr.contains(said), "{command:?}: {stderr}");
                assert!(!dir.path().join(".zprobe").exists(), "{command:?}: {stderr}");
            }
        }
    }
}

#[test]
fn a_command_for_names_lists_them_without_a_name() {
    for (command, said) in [
        ("list", "rules    Rules with their codes"),
        ("explain", "words       microbatch, boundary"),
    ] {
        let output = zprobe(&[command]);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{command}: {stdout}");
        assert!(stdout.contains(said), "{command}: {stdout}");
    }
    for word in ["clipping", "weights", "boundary", "exec", "latest"] {
        let output = zprobe(&["explain", word]);
        assert_eq!(output.status.code(), Some(0), "{word}");
    }
}

#[test]
fn verdicts_have_the_exit_codes_of_the_contract() {
    for (trace, code) in [("clean-accumulator", 0), ("boundary-leak", 1), ("rank-dies", 3)] {
        let output = zprobe(&["diagnose", &fixture(&format!("traces/{trace}"))]);
        assert_eq!(output.status.code(), Some(code), "{trace}");
    }
}

#[test]
fn without_a_terminal_there_are_no_colours() {
    let output = zprobe(&["diagnose", &fixture("traces/boundary-leak")]);
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn environment_variables_stand_in_for_flags() {
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["diagnose", &fixture("traces/boundary-leak")])
        .env("ZPROBE_OUTPUT_FORMAT", "concise")
        .output()
        .expect("zprobe starts");
    let text = String::from_utf8(output.stdout).expect("reports are UTF-8");
    assert!(text.starts_with("findings: ZP101"), "{text}");
}

#[test]
fn a_run_is_shown_with_the_python_that_recorded_it() {
    let shown = |typed: &str| {
        let dir = tempfile::tempdir().expect("a directory");
        for file in std::fs::read_dir(fixture("traces/boundary-leak")).expect("the trace") {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name");
            std::fs::copy(&path, dir.path().join(name)).expect("a copy");
        }
        std::fs::write(dir.path().join("command.txt"), typed).expect("the command");
        let output = zprobe(&["show", &dir.path().display().to_string()]);
        String::from_utf8(output.stdout).expect("reports are UTF-8")
    };
    for typed in ["run --out here --python 'my venv'", "check '--python=my venv'"] {
        let text = shown(&format!("zprobe {typed}"));
        let again =
            text.lines().find(|line| line.starts_with("again: zprobe run ")).expect("again");
        assert!(again.ends_with(" --python 'my venv'") && !again.contains("--out"), "{again}");
    }
    assert!(!shown("zprobe run --ga 2").contains("--python"));
    assert!(!shown("zprobe compare --python venv").contains("--python"));
}
