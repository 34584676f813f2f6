//! Runs that zprobe leaves in the working directory, their names, and their removal. The tests need no engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

/// A working directory with two rank programs: `dies` exits with code 7, and `waits` sleeps.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for (name, script) in [("dies", "exit 7"), ("waits", "exec sleep 1000")] {
            let path = place.0.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZPROBE_") {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(self.0.path());
        command
    }

    /// The exit code, standard output and standard error of zprobe.
    fn zprobe(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Records a run that fails, so that no engine is needed, and returns standard error.
    fn run(&self, args: &[&str]) -> String {
        let own = ["run", "--rank-program", "./dies", "--output-format", "concise"];
        let (code, _, stderr) = self.zprobe(&[&own, args].concat());
        assert_eq!(code, Some(3), "{stderr}");
        stderr
    }

    /// The sorted names of the entries of `.zprobe/runs`.
    fn runs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path().join(".zprobe/runs")).unwrap();
        let mut names: Vec<String> =
            entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn trace(&self, run: &str) -> PathBuf {
        self.0.path().join(".zprobe/runs").join(run).join("trace.jsonl")
    }

    /// Sets the age of a run, in days.
    fn age(&self, run: &str, days: u64) {
        let trace = fs::File::options().append(true).open(self.trace(run)).unwrap();
        trace.set_modified(SystemTime::now() - Duration::from_secs(days * 86_400)).unwrap();
    }
}

#[test]
fn runs_go_by_age_number_and_size_and_a_dry_run_only_says_so() {
    let place = Place::new();
    for (name, days) in [("a", 9), ("b", 5), ("c", 1)] {
        place.run(&["--out", &format!(".zprobe/runs/{name}")]);
        place.age(name, days);
    }
    fs::write(place.0.path().join(".zprobe/runs/notes.txt"), "mine").unwrap();
    let (code, stdout, stderr) = place.zprobe(&["clean"]);
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("3 runs in .zprobe/runs, "), "{stdout}");
    assert!(stderr.contains("nothing was removed: give a limit (--older-than 7d, "), "{stderr}");

    let (code, stdout, stderr) = place.zprobe(&["clean", "--older-than", "2d", "--dry-run"]);
    assert_eq!(code, Some(0));
    let listed: Vec<&str> = stdout.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(listed, [".zprobe/runs/a", ".zprobe/runs/b"], "the oldest first");
    for line in stdout.lines() {
        assert!(line.contains("  crashed  zprobe run --rank-program ./dies "), "{line}");
    }
    assert!(
        stderr.starts_with("would remove 2 of 3 runs and experiments in .zprobe, "),
        "{stderr}"
    );
    assert_eq!(place.runs(), ["a", "b", "c", "notes.txt"]);
    let json = ["clean", "--older-than", "2d", "--dry-run", "--output-format", "json"];
    let listed: serde_json::Value = serde_json::from_str(&place.zprobe(&json).1).unwrap();
    assert_eq!(
        (&listed[0]["run_dir"], listed.as_array().unwrap().len()),
        (&".zprobe/runs/a".into(), 2)
    );
    assert!(listed[1]["bytes"].as_u64().unwrap() > 0, "{listed}");
    assert_eq!(listed[1]["verdicts"][0], "crashed", "{listed}");

    let (_, _, stderr) = place.zprobe(&["clean", "--older-than", "7d", "--keep", "5"]);
    assert!(stderr.starts_with("removed 1 of 3 runs and experiments in .zprobe, "), "{stderr}");
    assert_eq!(place.runs(), ["b", "c", "notes.txt"]);
    place.zprobe(&["clean", "--keep", "1", "--max-size", "1GB"]);
    assert_eq!(place.runs(), ["c", "notes.txt"]);
    place.zprobe(&["clean", "--max-size", "10"]);
    assert_eq!(place.runs(), ["notes.txt"]);
    let (code, stdout, stderr) = place.zprobe(&["clean", "--keep", "0"]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""));
    assert!(stderr.contains("removed 0 of 0"), "{stderr}");
}

#[test]
fn a_run_that_is_being_written_is_left_alone() {
    let place = Place::new();
    let mut run = place.command(&["run", "--rank-program", "./waits", "--timeout", "600"]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let directory = place.0.path().join(".zprobe/runs");
    let started = || {
        let names = fs::read_dir(&directory).ok()?.flatten().map(|it| it.file_name());
        let mut names = names.map(|name| name.into_string().unwrap());
        names.find(|name| place.trace(name).exists())
    };
    let name = loop {
        match started() {
            Some(name) => break name,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (_, _, stderr) = place.zprobe(&["clean", "--keep", "0"]);
    assert!(stderr.contains("removed 0 of 0"), "{stderr}");
    assert!(place.trace(&name).exists());
    // The run of a killed process can be removed.
    run.kill().unwrap();
    run.wait().unwrap();
    let (_, _, stderr) = place.zprobe(&["clean", "--keep", "0"]);
    assert!(stderr.contains("removed 1 of 1"), "{stderr}");
    assert_eq!(place.runs(), Vec::<String>::new());
}

#[test]
fn git_ignores_what_zprobe_leaves_and_old_runs_make_room_for_new_ones() {
    let place = Place::new();
    let said = place.run(&[]);
    assert!(!said.contains("removed"), "{said}");
    let ignored = fs::read_to_string(place.0.path().join(".zprobe/.gitignore")).unwrap();
    assert_eq!(ignored, "*\n");
    let first = place.runs();
    assert_eq!(first.len(), 1, "no lock is left: {first:?}");
    place.age(&first[0], 3);
    place.run(&["--keep-runs", "0"]);
    let both = place.runs();
    assert_eq!(both.len(), 2);
    place.age(both.iter().find(|name| **name != first[0]).unwrap(), 1);

    fs::write(place.0.path().join("zprobe.toml"), "[run]\nkeep-runs = 2\n").unwrap();
    let said = place.run(&[]);
    assert!(said.contains("removed the 1 oldest run from .zprobe/runs, "), "{said}");
    assert!(said.contains(": --keep-runs 2"), "{said}");
    assert!(!place.runs().contains(&first[0]) && place.runs().len() == 2);
    let said = place.run(&["--keep-runs", "1", "--quiet"]);
    assert_eq!((said.as_str(), place.runs().len()), ("", 1));
    // Runs in another directory are not removed.
    place.run(&["--out", "elsewhere", "--keep-runs", "1"]);
    assert_eq!(place.runs().len(), 1);
}

#[test]
fn runs_are_listed_with_the_typed_command_and_found_by_their_names() {
    let place = Place::new();
    let list = |format| place.zprobe(&["list", "runs", "--output-format", format]);
    assert!(list("full").2.starts_with("no run is recorded here"), "{:?}", list("full"));
    for (name, days) in [("20260101T000000Z-1", 2), ("20260102T000000Z-2", 1)] {
        let token = "--rank-program=./dies --seed 7 -- --api-token=hunter2hunter2".split(' ');
        let out = format!(".zprobe/runs/{name}");
        let words: Vec<&str> = ["run", "--out", &out].into_iter().chain(token).collect();
        place.zprobe(&words);
        place.age(name, days);
    }
    let (code, stdout, _) = list("full");
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("20260102T000000Z-2  crashed, native, "), "{stdout}");
    assert!(lines[0].ends_with(" ago") && lines[2].starts_with("20260101T000000Z-1"), "{stdout}");
    let typed =
        "    zprobe run --out .zprobe/runs/20260102T000000Z-2 --rank-program=./dies --seed 7 -- ";
    assert!(lines[1].starts_with(typed) && !stdout.contains("hunter2"), "{stdout}");
    let listed: serde_json::Value = serde_json::from_str(&list("json").1).unwrap();
    assert_eq!(
        (&listed[1]["name"], &listed[1]["verdict"]),
        (&"20260101T000000Z-1".into(), &"crashed".into())
    );

    let show =
        |words: &[&str]| place.zprobe(&[&["show", "--output-format", "json"], words].concat());
    let newest = show(&[]);
    assert_eq!(newest.0, Some(3), "{}", newest.2);
    for name in ["latest", "20260102", ".zprobe/runs/20260102T000000Z-2"] {
        assert_eq!(show(&[name]), newest, "{name}");
    }
    for (name, said) in [
        (
            "2026",
            "the names of 2 runs begin with this; type more of the name:\n  20260102T000000Z-2  zprobe run",
        ),
        ("latest~2", "only 2 runs are recorded here"),
        ("nobody", "`zprobe list runs` lists the names"),
    ] {
        let (code, stdout, stderr) = show(&[name]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{name}");
        assert!(stderr.contains(said), "{name}: {stderr}");
    }
    let (code, stdout, stderr) = place.zprobe(&["compare", "latest~1", "latest"]);
    assert!(code == Some(3) && stdout.contains("runs/20260101T000000Z-1"), "{stdout}{stderr}");
    let (code, _, stderr) = place.zprobe(&["bisect", "step", "latest", "--engine", "native"]);
    assert_eq!(code, Some(128), "{stderr}");
    assert!(stderr.contains("at the next commit this would be another run"), "{stderr}");
}

#[test]
fn the_failed_case_of_a_check_is_the_newest_run_and_the_check_is_removed_as_a_whole() {
    let place = Place::new();
    place.run(&["--out", ".zprobe/runs/old"]);
    place.age("old", 1);
    let case = ".zprobe/check/20260101T000000Z-7/native/stage1";
    place.run(&["--out", case]);
    let (code, stdout, stderr) = place.zprobe(&["show"]);
    assert!(code == Some(3) && stdout.contains(case), "{stdout}{stderr}");
    let (_, stdout, _) = place.zprobe(&["list", "runs"]);
    assert!(stdout.starts_with("20260101T000000Z-7/native/stage1  crashed, native, "), "{stdout}");
    let (_, stdout, stderr) = place.zprobe(&["clean", "--keep", "0"]);
    assert!(stderr.starts_with("removed 2 of 2 runs and experiments in .zprobe, "), "{stderr}");
    let removed: Vec<&str> = stdout.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(removed, [".zprobe/runs/old", ".zprobe/check/20260101T000000Z-7"]);
    assert!(stdout.contains("  crashed  zprobe run --rank-program ./dies "), "{stdout}");
    assert!(!place.0.path().join(".zprobe/check/20260101T000000Z-7").exists());
}

#[test]
fn a_hostile_name_of_a_run_does_not_reach_the_terminal() {
    let place = Place::new();
    place.run(&["--out", ".zprobe/runs/plain"]);
    let hostile = "20260101\u{1b}]0;owned\u{7}\u{1b}[2J\n::error::x";
    let runs = place.0.path().join(".zprobe/runs");
    fs::rename(runs.join("plain"), runs.join(hostile)).unwrap();
    for words in [
        &["list", "runs"][..],
        &["list", "runs", "--output-format", "json"],
        &["show", "latest"],
        &["show", "--output-format", "full"],
        &["show", "nobody"],
        &["compare", "latest", "latest"],
        &["issue", "--dry-run", "--force"],
        &["issue", "--force"],
        &["clean"],
        &["clean", "--keep", "0", "--dry-run", "--output-format", "json"],
        &["clean", "--keep", "0", "--dry-run"],
        &["clean", "--keep", "0"],
    ] {
        // Without colours, no escape sequence is written to a pipe.
        let (_, stdout, stderr) = place.zprobe(&[&["--color", "always"], words].concat());
        let hidden = ["\u{1b}]", "\u{1b}[2J", "\u{7}"];
        let hidden = |text: &str| hidden.iter().any(|it| text.contains(it));
        assert!(!hidden(&stdout) && !hidden(&stderr), "{words:?}\n{stdout}{stderr}");
        let commands = |text: &str| text.lines().any(|line| line.starts_with("::"));
        assert!(!commands(&stdout) && !commands(&stderr), "{words:?}\n{stdout}{stderr}");
    }
    assert_eq!(place.runs(), Vec::<String>::new());
}
