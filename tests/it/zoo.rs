//! The zoo: its rows are complete, its judgement is right, and its command reports the results. The tests
//! need neither libtorch nor a network.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use zprobe_diagnose::{diagnose, rules};
use zprobe_model::trace::Trace;
use zprobe_report::{OwnWords, RuleCode};
use zprobe_zoo::{Expectation, Release, registry};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory to run `zprobe` in, with an own cache and a `PATH` that has only the given programs.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    /// Writes a program to the `PATH` of [`Place::zprobe`].
    fn program(&self, name: &str, script: &str) {
        let bin = self.0.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn zprobe(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        command
            .args(args)
            .current_dir(self.0.path())
            .env_clear()
            .env("PATH", self.0.path().join("bin"))
            .env("ZPROBE_CACHE_DIR", self.0.path().join("cache"));
        command
    }
}

/// The text of a row whose ranks are `program`; `release` is the rest of the row's `[[release]]`.
fn row(program: &str, release: &str) -> String {
    format!(
        "name = 'own'\ntitle = 'Own'\nlinks = []\nengine = 'native'\nsummary = 'It is so.'\n\
         cause = 'Not known.'\nworkaround = 'None.'\n\
         run = \"--engine native --rank-program '{program}'\"\n[[release]]\n{release}\n"
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn every_file_of_the_zoo_is_registered() {
    let files: BTreeSet<String> = fs::read_dir(root().join("probes/zoo"))
        .unwrap()
        .map(|entry| format!("probes/zoo/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    let registered: BTreeSet<String> =
        registry::FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(files, registered, "crates/zoo/src/registry.rs has another list");
}

#[test]
fn every_row_is_readable_and_expects_rules_that_exist() {
    for row in registry::rows() {
        for release in &row.releases {
            let code = match &release.expect {
                Expectation::Clean => None,
                Expectation::Finding(code) => Some(code),
                Expectation::Crash { finding, .. } => finding.as_ref(),
            };
            if let Some(code) = code {
                assert!(rules::find(code).is_some(), "{}: {code} is no rule", row.name);
            }
            assert!(!release.packages.is_empty(), "{} has a release without packages", row.name);
        }
        let releases: BTreeSet<String> = row.releases.iter().map(Release::label).collect();
        assert_eq!(releases.len(), row.releases.len(), "{} has a release twice", row.name);
    }
}

#[test]
fn a_report_is_as_expected_or_not() {
    let finding = |code: &str| Expectation::Finding(RuleCode::new(code));
    let crash = |message: &str, finding: Option<&str>| Expectation::Crash {
        message: message.to_owned(),
        finding: finding.map(RuleCode::new),
    };
    let cases = [
        ("clean-accumulator", Expectation::Clean, true),
        ("clean-accumulator", finding("ZP101"), false),
        ("boundary-leak", finding("ZP101"), true),
        // ZP601 is a consequence in this trace, and not the cause.
        ("boundary-leak", finding("ZP601"), false),
        ("boundary-leak", Expectation::Clean, false),
        ("rank-dies", crash("SIGKILL", Some("ZP901")), true),
        ("rank-dies", crash("SIGKILL", None), true),
        ("rank-dies", crash("SIGKILL", Some("ZP201")), false),
        ("rank-dies", crash("IndexError", None), false),
        ("rank-dies", Expectation::Clean, false),
    ];
    for (trace, expect, ok) in cases {
        let trace_dir = root().join("fixtures/traces").join(trace);
        let report = diagnose(&Trace::read(&trace_dir).unwrap());
        let release = Release { packages: Default::default(), extra: vec![], expect };
        let judgement = release.expect.judge(&report, &OwnWords::default());
        assert_eq!(judgement.ok, ok, "{trace}, {}: got {}", release.expect, judgement.got);
    }
}

#[test]
fn rows_and_releases_that_do_not_exist_are_refused() {
    let place = Place::new();
    place.write("bad.toml", "name = 'bad'\ntitel = 'Bad'\n");
    for (args, message) in [
        (&["zoo", "boundry-leak"][..], "did you mean `boundary-leak`?"),
        (&["zoo", "xyz"], "`zprobe list zoo` lists all rows"),
        (&["zoo", "--release", "0.1.2"], "no chosen row has this release"),
        (&["zoo", "--jobs", "0"], "must be at least 1"),
        (&["zoo", "absent.toml"], "cannot read absent.toml"),
        (&["zoo", "bad.toml"], "bad.toml:2:1: no such key `titel`; did you mean `title`?"),
    ] {
        let output = place.zprobe(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn a_list_runs_nothing() {
    let place = Place::new();
    let output = place.zprobe(&["zoo", "boundary-leak", "--list", "--release", "0.18.9"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout));
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn every_row_is_listed_with_its_title() {
    let output = Place::new().zprobe(&["list", "zoo"]);
    let listed = text(&output.stdout);
    for row in registry::rows() {
        assert!(listed.contains(&row.name) && listed.contains(&row.title), "{}", row.name);
    }
}

#[test]
fn a_run_is_judged_by_its_report_and_the_exit_code_says_whether_all_is_as_expected() {
    for (release, code, ok) in [
        ("expect = 'crash'\nmessage = 'out of cheese'", 0, "yes"),
        ("expect = 'crash'\nmessage = 'out of milk'", 1, "NO"),
        ("expect = 'clean'", 1, "NO"),
    ] {
        let place = Place::new();
        place.program("rank", "echo 'out of cheese' >&2\nexit 1\n");
        let rank = place.0.path().join("bin/rank");
        place.write("own.toml", &row(rank.to_str().unwrap(), release));
        let output = place.zprobe(&["zoo", "own.toml", "--out", "runs"]);
        let stdout = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{stdout}{}", text(&output.stderr));
        let line = stdout.lines().nth(1).unwrap();
        assert!(line.contains("ZP901") && line.ends_with(ok), "{stdout}");
        assert!(place.0.path().join("runs/own/0/report.json").exists());
    }
}

#[test]
fn what_an_engine_refuses_here_is_skipped_with_its_reason_unless_it_is_expected() {
    let place = Place::new();
    place.program("rank", "echo 'ValueError: Type fp16 is not supported.' >&2\nexit 1\n");
    let rank = place.0.path().join("bin/rank");
    let rank = rank.to_str().unwrap();
    let expected = "expect = 'crash'\nmessage = 'fp16 is not supported'";
    let zoo = |name: &str, release: &str| {
        place.write("own.toml", &row(rank, release));
        place.zprobe(&["zoo", "own.toml", "--out", name])
    };
    let output = zoo("a", "expect = 'clean'");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{stdout}{stderr}");
    assert!(stdout.lines().nth(1).unwrap().ends_with("skipped"), "{stdout}");
    assert!(stdout.contains("cannot run here: DeepSpeed refuses fp16"), "{stdout}");
    assert!(stderr.contains("nothing ran"), "{stderr}");
    let output = zoo("b", &format!("expect = 'clean'\n[[release]]\n{expected}"));
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(stdout.contains("1 of 1 as expected"), "{stdout}");
}

#[test]
fn an_interrupted_zoo_keeps_what_is_finished_and_says_what_was_not_tried() {
    let place = Place::new();
    // The first rank fails at once, and the second waits for the interrupt.
    place.program(
        "rank",
        "cd \"${0%/*}\"\necho >> ranks\n[ $(wc -l < ranks) = 1 ] && exit 1\n\
         : > waiting\nexec sleep 600\n",
    );
    let rank = place.0.path().join("bin/rank");
    let release = "expect = 'ZP901'\n[[release]]\nexpect = 'clean'\n[[release]]\nexpect = 'clean'";
    let row = row(rank.to_str().unwrap(), release);
    place.write("own.toml", &row.replace("--engine native", "--engine native --nproc-per-node 1"));
    // As on a terminal, one group of processes gets the interrupt of Ctrl-C.
    let zprobe = place
        .command(&["zoo", "own.toml", "--out", "runs"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !place.0.path().join("bin/waiting").exists() {
        thread::sleep(Duration::from_millis(10));
    }
    killpg(Pid::from_raw(zprobe.id().cast_signed()), Signal::SIGINT).unwrap();
    let output = zprobe.wait_with_output().unwrap();
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{stdout}{}", text(&output.stderr));
    let lines: Vec<&str> = stdout.lines().collect();
    for (line, words) in
        lines[1..4].iter().zip([["ZP901", "yes"], ["interrupted", "-"], ["not tried", "-"]])
    {
        assert!(line.contains(words[0]) && line.ends_with(words[1]), "{line}: {words:?}");
    }
    assert_eq!(lines[4..], ["1 of 2 as expected, 1 not tried: interrupted"]);
    assert!(place.0.path().join("runs/own/0/report.json").exists());
    let processes = Command::new("pgrep").args(["-f", rank.to_str().unwrap()]).output().unwrap();
    assert_eq!(text(&processes.stdout), "", "a rank is left");
}

#[test]
fn programs_get_json_and_the_documentation_markdown() {
    let place = Place::new();
    place.program("rank", "exit 1\n");
    let rank = place.0.path().join("bin/rank");
    place.write("own.toml", &row(rank.to_str().unwrap(), "expect = 'ZP901'"));
    let output = place.zprobe(&["zoo", "own.toml", "--output-format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json[0]["row"], "own");
    assert_eq!(json[0]["ok"], true, "{json}");
    let output = place.zprobe(&["zoo", "own.toml", "--output-format", "markdown"]);
    let markdown = text(&output.stdout);
    assert!(markdown.starts_with("| row |"), "{markdown}");
    assert!(markdown.contains("## own\n\nOwn.\n\nIt is so.\n"), "{markdown}");
}

#[test]
fn without_uv_environments_are_made_with_venv_and_pip() {
    let place = Place::new();
    place.program(
        "python3.11",
        r#"
if [ "$1" = -c ]; then echo 3.11; exit; fi
mkdir -p "$3/bin"
printf '#!/bin/sh\ncase "$*" in *"-m pip"*) echo "no network here" >&2; exit 1;; esac\n' \
    >"$3/bin/python"
chmod +x "$3/bin/python"
"#,
    );
    place.write("own.toml", &row("true", "packages = { torch = '2.11.0' }\nexpect = 'clean'"));
    let output = place.zprobe(&["zoo", "own.toml"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["torch 2.11.0: making a virtual environment", "no network here", "try again"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(text(&output.stdout).contains("no environment"), "{}", text(&output.stdout));
}

#[test]
fn a_machine_without_any_fitting_python_is_told_what_to_install() {
    let place = Place::new();
    place.write("own.toml", &row("true", "packages = { torch = '2.11.0' }\nexpect = 'clean'"));
    let output = place.zprobe(&["zoo", "own.toml"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no Python 3.11 or 3.10 on PATH"), "{stderr}");
    assert!(stderr.contains("pip install uv"), "{stderr}");
}
