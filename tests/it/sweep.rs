//! `zprobe sweep`: the requests that it refuses, and the independence of the runs of its rows. The tests need
//! no engine: a program replaces a Python that has an engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Runs `zprobe sweep` in a directory.
fn sweep(dir: &TempDir, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

/// The command `zprobe sweep` in a directory, without zprobe's variables in the environment.
fn command(dir: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") {
            command.env_remove(name);
        }
    }
    command.arg("sweep").args(args).current_dir(dir.path()).env("WORLD_SIZE", "5");
    command
}

/// True if a process of this group is a worker.
fn has_worker(group: u32) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.into_iter().any(|process| {
        let read = |name: &str| std::fs::read_to_string(process.path().join(name));
        // The fields after the name in parentheses are state, parent and group.
        let in_group = read("stat").is_ok_and(|stat| {
            let fields = stat.rsplit(')').next().unwrap_or_default();
            fields.split_whitespace().nth(2) == Some(&group.to_string())
        });
        in_group && read("cmdline").is_ok_and(|words| words.contains("pool-worker"))
    })
}

#[test]
fn a_list_fits_its_columns_but_for_commands_that_can_be_pasted() {
    let python = "/an environment/bin/python";
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["sweep", "--engine", "ddp", "--list", "--limit", "3", "--python", python])
        .env("COLUMNS", "60")
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    let (commands, words): (Vec<&str>, Vec<&str>) =
        stdout.lines().partition(|line| line.starts_with("  zprobe run "));
    assert!(words.iter().all(|line| line.chars().count() <= 60), "{words:?}");
    let words = shlex::split(commands[0]).unwrap();
    assert_eq!(words[..4], ["zprobe", "run", "--engine", "ddp"]);
    assert_eq!(words[words.len() - 2..], ["--python", python]);
}

#[test]
fn an_interrupt_from_a_terminal_is_no_result_of_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let python = stand_in();
    let args = ["--engine", "ddp", "--python", &python, "--limit", "40", "--output-format", "json"];
    let mut command = command(&dir, &args);
    let zprobe =
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    while !has_worker(zprobe.id()) {
        std::thread::yield_now();
    }
    // As a terminal does, the test sends the signal to all processes of the group.
    killpg(Pid::from_raw(zprobe.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = zprobe.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let endings: Vec<&Value> =
        json["rows"].as_array().unwrap().iter().map(|row| &row["outcome"]["ending"]).collect();
    assert!(!endings.iter().any(|ending| **ending == "not-run"), "{json:#}");
    assert!(json["not_tried"].as_u64().unwrap() > 0, "{json:#}");
    // If a run crashed before the interrupt, the exit code is that of a crash.
    let expected = if endings.iter().any(|it| **it == "crashed") { 3 } else { 4 };
    assert_eq!(output.status.code(), Some(expected), "{json:#}");
}

/// The processor time that a process has used, in ticks of the system's clock; 0 if there is no such process.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().nth(11).and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

#[test]
fn an_interrupt_while_a_sweep_is_planned_ends_it_with_an_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    // No configuration passes the filter, so all draws are made, which takes minutes.
    let mut command =
        command(&dir, &["--list", "--random", "1000000", "--filter", "no such words"]);
    let mut zprobe = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    // After 50 ticks zprobe is drawing: all earlier work takes a few ticks.
    while ticks(zprobe.id()) < 50 && Instant::now() < patience {
        assert!(zprobe.try_wait().unwrap().is_none(), "the plan was made already");
        std::thread::yield_now();
    }
    kill(Pid::from_raw(zprobe.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = zprobe.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("interrupted while the sweep was planned; nothing was run"), "{said}");
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The path of a program that replaces Python; `swept.py` describes its ranks.
fn stand_in() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ranks/swept.py");
    path.display().to_string()
}

#[test]
fn what_cannot_be_swept_is_refused_with_what_to_do_instead() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--jobs", "0"][..], "--jobs 0: must be at least 1"),
        (&["--steps", "0"][..], "--steps 0: must be at least 1"),
        (&["--filter", "no such thing"], "no configuration of the deepspeed engine is left to run"),
        (&["--package", "torch"], "give a package with its version"),
        (&["--package", "torch==x"], "x: not a version"),
        (&["--package", "torch==2.11.0", "--python", "python3"], "leave one of them out"),
        (&["--results", "missing.json"], "cannot read missing.json"),
        (&["--engine", "jax"], "invalid value"),
    ] {
        let output = sweep(&dir, args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
    }
}

#[test]
fn a_list_says_what_would_be_run_and_why_the_rest_would_not() {
    let dir = tempfile::tempdir().unwrap();
    let output = sweep(&dir, &["--list", "--stage", "3", "--output-format", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["command"].as_str().unwrap().contains("--stage 3")));
    let reasons = json["refused"].as_array().unwrap();
    assert!(reasons.iter().any(|it| it["reason"].as_str().unwrap().contains("bypass")), "{json}");
}

#[test]
fn a_crash_and_the_end_of_the_pool_harm_no_other_row() {
    let dir = tempfile::tempdir().unwrap();
    let python = stand_in();
    let args = ["--engine", "ddp", "--python", &python, "--filter", "bf16", "--limit", "27"];
    let args = [&args[..], &["--part", "factor", "--keep", "kept", "--output-format", "json"]];
    let output = sweep(&dir, &args.concat());
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 27, "{json}");
    for row in rows {
        let label = row["label"].as_str().unwrap();
        // Ranks that behave well report nothing that could be judged.
        let ending = if label.ends_with("ga 1") { "crashed" } else { "inconclusive" };
        assert_eq!(row["outcome"]["ending"], ending, "{row:#}\n{stderr}");
        let report = dir.path().join(row["run_dir"].as_str().unwrap()).join("report.json");
        assert!(report.exists(), "{}", report.display());
    }
    for wanted in ["ga 1", "ga 3", "3 ranks"] {
        assert!(
            rows.iter().any(|row| row["label"].as_str().unwrap().ends_with(wanted)),
            "{wanted}"
        );
    }
    assert_eq!(std::fs::read_dir(dir.path().join(".zprobe/sweep")).unwrap().count(), 0);
}

#[test]
fn what_the_machine_cannot_run_is_skipped_and_nothing_is_started_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    let facts = r#"{"executable": "stand-in", "version": "3.12.0", "torch": {"value": "2.11.0"},
        "deepspeed": {"value": "0.19.8"}, "deepspeed_features": {"value": []}}"#;
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = -c ] || exit 1\nshift 2\n\
         case \"$*\" in *deepspeed_features*) echo asked >> \"${{0%/*}}/asked\";; esac\ncat <<'END'\n{facts}\nEND\n"
    );
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let args =
        ["--python", "./python", "--filter=coalesced-reduction", "--part", "factor", "--confirm"];
    let output = sweep(&dir, &args);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "nothing ran: {stdout}");
    assert!(stdout.contains("0 of 0 configurations clean, "), "{stdout}");
    assert!(
        stdout.contains("skipped: DeepSpeed 0.19.8 has no coalesce_grad_reduction"),
        "{stdout}"
    );
    assert!(!stdout.contains("crashed") && !stdout.contains("not-run"), "{stdout}");
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap();
    assert_eq!(asked.lines().count(), 1, "an interpreter is asked once");
}

#[test]
fn a_sweep_goes_on_where_an_earlier_one_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let python = stand_in();
    let args =
        ["--engine", "ddp", "--python", &python, "--part", "base", "--output-format", "json"];
    let run = |more: &[&str]| -> Value {
        let output = sweep(&dir, &[&args[..], more].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let commands = |sweep: &Value| -> Vec<String> {
        let rows = sweep["rows"].as_array().unwrap();
        rows.iter().map(|row| row["command"].to_string()).collect()
    };
    let first = run(&["--limit", "1"]);
    std::fs::write(dir.path().join("first.json"), first.to_string()).unwrap();
    let both = run(&["--resume", "first.json"]);
    assert_eq!(both["rows"][0], first["rows"][0], "what was run before is kept as it is");
    assert_eq!(commands(&both), commands(&run(&[])), "together they are the whole");
    let other = sweep(&dir, &["--engine", "fsdp2", "--list", "--resume", "first.json"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(
        text(&other.stderr).contains("the earlier sweep was of ddp"),
        "{}",
        text(&other.stderr)
    );
}

#[test]
fn a_python_that_cannot_import_the_engine_is_told_in_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let output = sweep(&dir, &["--engine", "fsdp2", "--python", &stand_in(), "--limit", "1"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    assert!(stdout.contains("not-run"), "{stdout}");
}

#[test]
fn equal_outcomes_are_one_line_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let python = stand_in();
    let args = ["--engine", "ddp", "--python", &python, "--filter", "ga 1", "--part", "factor"];
    let args = [&args[..], &["--confirm", "--output-format", "markdown"]].concat();
    let output = sweep(&dir, &args);
    let stdout = text(&output.stdout);
    let lines: Vec<&str> = stdout.lines().filter(|line| line.contains("crashed")).collect();
    let [line] = lines[..] else { panic!("{stdout}{}", text(&output.stderr)) };
    assert!(line.contains("bf16; fp16; fp32"), "{line}");
    assert!(line.contains("`zprobe run --engine ddp --dtype bf16 --ga 1`"), "{line}");
    assert!(stdout.contains("0 of 3 configurations clean"), "{stdout}");
}
