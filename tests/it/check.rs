//! `zprobe check`: the standard suite is complete, a suite continues after a failure, and a CI gets the
//! results. The tests need no engine: a program replaces a Python that has engines.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;
use zprobe_diagnose::rules;
use zprobe_lab::check::probe::registry;
use zprobe_model::spec::Engine;
use zprobe_report::suite::{Case, NoticeKind, Status, Suite};
use zprobe_zoo::Expectation;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The output of the fake Python for `zprobe doctor`: DDP can run, FSDP2 is broken, DeepSpeed is missing.
const FACTS: &str = r#"{"executable": "stand-in", "version": "3.12.0", "torch": {"value": "2.11.0"},
"ddp": {"value": true}, "fsdp2": {"problem": "RuntimeError: too old"},
"deepspeed": {"problem": "ModuleNotFoundError: No module named 'deepspeed'"}}"#;

/// The output of a fake Python with a DeepSpeed that lacks a feature.
const OLD_RELEASE: &str = r#"{"executable": "stand-in", "version": "3.12.0", "torch": {"value": "2.11.0"},
"ddp": {"value": true}, "fsdp2": {"value": true}, "deepspeed": {"value": "0.19.8"},
"deepspeed_features": {"value": []}}"#;

/// A directory with a fake Python whose ranks behave by the number of microbatches. With 1 the ranks do not
/// finish, with 3 they kill the pool, otherwise they report nothing that could be judged.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let ranks = root().join("fixtures/ranks/swept.py");
        let ranks = ranks.display();
        place.python(&format!("exec '{ranks}' \"$@\""));
        place
    }

    /// Writes a Python that runs this shell code if it is started as a pool.
    fn python(&self, pool: &str) {
        self.python_with(FACTS, pool);
    }

    /// Writes a Python with these facts that runs this shell code if it is started as a pool.
    fn python_with(&self, facts: &str, pool: &str) {
        let facts = format!("cat <<'END'\n{facts}\nEND");
        let script = format!("#!/bin/sh\nif [ \"$1\" = -c ]; then\n{facts}\nelse {pool}\nfi\n");
        self.write("python", &script);
        let path = self.0.path().join("python");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes a Python that fails as a pool if this shell condition holds. In the condition `$n` is the
    /// number of times that the Python was started as a pool.
    fn flaky(&self, condition: &str) {
        let starts = self.0.path().join("starts");
        let (starts, ranks) = (starts.display(), root().join("fixtures/ranks/swept.py"));
        self.python(&format!(
            "echo >> '{starts}'\nn=$(wc -l < '{starts}')\n\
             if [ {condition} ]; then echo \"bad luck $n\" >&2; exit 7; fi\n\
             exec '{}' \"$@\"",
            ranks.display()
        ));
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// Writes probes on DDP: two crash, one of which is expected to crash, and one reports nothing.
    pub fn probes(&self) {
        for (name, ga, expect) in
            [("a-crash", 1, "clean"), ("b-silent", 2, "clean"), ("c-known", 1, "ZP901")]
        {
            let text = format!(
                "description = 'Own'\nengines = ['ddp']\nexpect = '{expect}'\n[run]\nga = {ga}\n"
            );
            self.write(&format!("probes/{name}.toml"), &text);
        }
    }

    /// Writes a probe of a script, with these lines of its section `exec`.
    fn script(&self, name: &str, lines: &str) {
        self.write(&format!("{name}.toml"), &format!("description = 'Ours'\n\n[exec]\n{lines}"));
    }

    pub fn zprobe(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZPROBE_") {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(self.0.path()).env_remove("GITHUB_STEP_SUMMARY");
        command
    }

    /// The exit code and the report of `zprobe check probes` with the fake Python.
    fn check(&self, args: &[&str]) -> (i32, Suite) {
        let own = ["check", "probes", "--python", "./python", "--output-format", "json"];
        let output = self.zprobe(&[&own, args].concat());
        let suite = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|err| panic!("{err}: {}", text(&output.stderr)));
        (output.status.code().unwrap(), suite)
    }
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn statuses(suite: &Suite) -> Vec<(&str, Status)> {
    suite.cases.iter().map(|case| (case.probe.as_str(), case.status)).collect()
}

#[test]
fn every_file_of_the_standard_suite_is_registered() {
    let entries = fs::read_dir(root().join("probes")).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> = entries
        .filter(|path| path.is_file())
        .map(|path| format!("probes/{}", path.file_name().unwrap().to_str().unwrap()))
        .collect();
    let registered: BTreeSet<String> =
        registry::FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(files, registered, "crates/lab/src/check/probe/registry.rs has another list");
}

#[test]
fn the_standard_suite_covers_every_engine_and_expects_what_exists() {
    let probes = registry::probes().unwrap();
    let on = |engine| probes.iter().filter(|probe| probe.engines.contains(&engine)).count();
    assert!(on(Engine::Native) >= 24 && on(Engine::DeepSpeed) >= 24);
    assert!(on(Engine::Ddp) >= 4 && on(Engine::Fsdp2) >= 4);
    for probe in probes {
        if let Expectation::Finding(code) = &probe.expect {
            assert!(rules::find(code).is_some(), "{}: {code} is no rule", probe.name);
        }
    }
}

#[test]
fn what_cannot_be_checked_is_refused_with_what_to_do_instead() {
    let place = Place::new();
    place.probes();
    place.write("broken/own.toml", "description = 'Own'\n[run]\nstgae = 2\n");
    place.write("cannot/own.toml", "description = 'Own'\n[run]\nstage = 9\n");
    place.write("same/a-crash.toml", "description = 'Own'\n");
    place.write("empty/x", "");
    place.script("scripts/both", "command = 'torchrun t.py'\n[run]\nstage = 1\n");
    place.script("scripts/empty", "command = ''\n");
    place.script("scripts/key", "command = 'torchrun t.py'\ntimeuot = 3\n");
    place.script("scripts/quote", "command = \"torchrun 't.py\"\n");
    place.script("scripts/shell", "command = 'cd src && torchrun t.py'\n");
    place.script("scripts/zero", "command = 'torchrun t.py'\nobserve = 0\n");
    place.write("bad-baseline.toml", "[[accept]]\ncode = 'ZP101'\n");
    let write = ["--write-baseline", "b.toml", "--reason", "x", "--expires"];
    let write = |day| [&["check"][..], &write, &[day]].concat();
    let over = write("2020-01-01");
    let soon = write("soon");
    let refused = [
        &["check", "stage1-bf61"][..],
        &["check", "nothing-like-it"],
        &["check", "missing.toml"],
        &["check", "empty"],
        &["check", "broken"],
        &["check", "cannot"],
        &["check", "broken/own.toml", "cannot/own.toml", "missing.toml", "stage1-bf61"],
        &["check", "scripts"],
        &["check", "scripts/quote.toml"],
        &["check", "probes", "same"],
        &["check", "probes", "--filter", "no such thing"],
        &["check", "probes", "--engine", "native"],
        &["check", "--jobs", "0"],
        &["check", "--engine", "deepspeed", "--python", "./python"],
        &["check", "--engine", "ddp", "--python", "./not-there"],
        &["check", "--baseline", "missing.toml"],
        &["check", "--baseline", "bad-baseline.toml"],
        &["check", "--write-baseline", "bad-baseline.toml"],
        &over,
        &soon,
    ];
    let messages = refused.map(|args| {
        let output = place.zprobe(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        format!("$ zprobe {}\n{stderr}", args.join(" "))
    });
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn a_suite_goes_on_after_a_failure_and_ends_with_the_code_of_the_worst() {
    let place = Place::new();
    place.probes();
    let expected = [
        ("a-crash", Status::Crashed),
        ("b-silent", Status::Inconclusive),
        ("c-known", Status::Passed),
    ];
    for jobs in ["1", "3"] {
        let (code, suite) = place.check(&["--jobs", jobs]);
        assert_eq!((code, statuses(&suite)), (3, expected.to_vec()), "{jobs} jobs");
        let kept = |at: usize| suite.cases[at].run_dir.as_ref().map(|dir| place.0.path().join(dir));
        assert!(kept(0).unwrap().join("report.json").exists());
        assert_eq!(kept(2), None, "what is well is not kept");
    }
    let (code, suite) = place.check(&["--filter", "silent"]);
    assert_eq!((code, statuses(&suite)), (4, expected[1..2].to_vec()));
    let (code, suite) = place.check(&["--filter", "known"]);
    assert_eq!((code, statuses(&suite)), (0, expected[2..].to_vec()));
    let (code, _) = place.check(&["--exit-zero"]);
    assert_eq!(code, 0);
    assert!(!place.0.path().join(".zprobe/pools").read_dir().unwrap().any(|_| true));
}

#[test]
fn a_check_is_shown_again_by_its_directory_and_by_its_name() {
    let place = Place::new();
    place.probes();
    let checked = place.zprobe(&["check", "probes", "--python", "./python"]);
    let name =
        text(&checked.stderr).lines().find_map(|it| it.strip_prefix("recorded in .zprobe/check/"));
    let name = name.unwrap();
    for given in [format!(".zprobe/check/{name}"), name.to_owned()] {
        let shown = place.zprobe(&["show", &given, "--export-junit", "junit.xml"]);
        assert_eq!(shown.status.code(), Some(3), "{}", text(&shown.stderr));
        assert_eq!(text(&shown.stdout), text(&checked.stdout));
        assert!(place.read("junit.xml").contains("a-crash"));
    }
    let refused = place.zprobe(&["show", name, "--export-trace", "trace.json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("zprobe list runs"), "{}", text(&refused.stderr));
    place.zprobe(&["check", "probes", "--python", "./python", "--filter", "known"]);
    let kept = place.0.path().join(".zprobe/check").read_dir().unwrap().count();
    assert_eq!(kept, 1, "a check in which all is well is not kept");
}

#[test]
fn the_end_of_a_pool_harms_no_other_case() {
    let place = Place::new();
    place.probes();
    place.write("probes/a-killer.toml", "description = 'Own'\nengines = ['ddp']\n[run]\nga = 3\n");
    let (_, suite) = place.check(&[]);
    let (last, status) = *statuses(&suite).last().unwrap();
    assert_eq!((last, status), ("c-known", Status::Passed), "{suite:?}");
}

#[test]
fn an_engine_whose_pool_does_not_start_twice_in_a_row_is_given_up() {
    let place = Place::new();
    place.probes();
    place.write("probes/d-last.toml", "description = 'Own'\nengines = ['ddp']\n");
    place.flaky("$n -gt 0");
    let (code, suite) = place.check(&[]);
    assert_eq!((code, suite.count(Status::NotRun)), (2, 4));
    assert_eq!(place.read("starts").lines().count(), 2);
    for case in &suite.cases[2..] {
        let reason = case.reason.as_deref().unwrap();
        assert!(
            reason.starts_with("no pool was started, because the last 2 pools failed to start: "),
            "{reason}"
        );
        assert!(reason.contains("exited with code 7") && reason.contains("bad luck 2"), "{reason}");
    }
}

#[test]
fn pools_that_do_not_start_now_and_then_are_tried_again() {
    let place = Place::new();
    for (name, ga) in [("a", 2), ("b", 3), ("c", 2), ("d", 2)] {
        let text = format!("description = 'Own'\nengines = ['ddp']\n[run]\nga = {ga}\n");
        place.write(&format!("probes/{name}.toml"), &text);
    }
    // The pool of `a` does not start. The pool of `b` starts and is killed. The pool of `c` does not start,
    // and that of `d` does.
    place.flaky("$((n % 2)) -eq 1");
    let (_, suite) = place.check(&[]);
    let last = suite.cases.last().unwrap();
    assert_eq!((last.status, place.read("starts").lines().count()), (Status::Inconclusive, 4));
}

#[test]
fn fail_fast_starts_nothing_after_the_first_failure() {
    let place = Place::new();
    place.probes();
    let (code, suite) = place.check(&["--fail-fast"]);
    assert_eq!(code, 3);
    assert_eq!(
        statuses(&suite),
        [("a-crash", Status::Crashed), ("b-silent", Status::Skipped), ("c-known", Status::Skipped)]
    );
    assert!(suite.cases[1].reason.as_ref().unwrap().contains("--fail-fast"));
}

#[test]
fn an_engine_that_is_not_there_is_skipped_and_said_so() {
    let place = Place::new();
    place.probes();
    place.write("probes/d-other.toml", "description = 'Own'\nengines = ['deepspeed', 'fsdp2']\n");
    let (code, suite) = place.check(&["--filter", "known"]);
    assert_eq!((code, suite.cases.len()), (0, 1));
    let (code, suite) = place.check(&[]);
    assert_eq!(code, 3);
    let reasons: Vec<&str> = suite
        .cases
        .iter()
        .filter(|case| case.status == Status::Skipped)
        .map(|case| case.reason.as_deref().unwrap())
        .collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    assert!(reasons[0].contains("No module named 'deepspeed'"), "{reasons:?}");
    assert!(reasons[1].contains("too old"), "{reasons:?}");
    let junit =
        place.zprobe(&["check", "probes", "--python", "./python", "--output-format", "junit"]);
    let report = quick_junit::Report::deserialize_from_str(text(&junit.stdout)).unwrap();
    let tests = report.test_suites.iter().flat_map(|suite| &suite.test_cases);
    let skipped =
        tests.filter(|test| matches!(test.status, quick_junit::TestCaseStatus::Skipped { .. }));
    assert_eq!(skipped.count(), 2);
}

#[test]
fn what_this_machine_cannot_run_is_skipped_with_its_reason_and_never_started() {
    let place = Place::new();
    place.python_with(OLD_RELEASE, "echo started >> starts; exit 1");
    place.write(
        "probes/new.toml",
        "description = 'Own'\nengines = ['deepspeed']\n[run]\nstage = 2\nshape = ['coalesced-reduction']\n",
    );
    let (code, suite) = place.check(&["--engine", "deepspeed"]);
    assert_eq!((code, statuses(&suite)), (2, vec![("new", Status::Skipped)]));
    let reason = suite.cases[0].reason.as_deref().unwrap();
    assert!(
        reason.starts_with("cannot run here: DeepSpeed 0.19.8 has no coalesce_grad_reduction"),
        "{reason}"
    );
    assert_eq!(suite.unchecked.unwrap(), "--engine deepspeed: none of its probes was run");
    let args = ["check", "probes", "--python", "./python", "--output-format", "junit"];
    let junit = place.zprobe(&args);
    let skipped =
        "<skipped message=\"cannot run here: DeepSpeed 0.19.8 has no coalesce_grad_reduction";
    assert!(text(&junit.stdout).contains(skipped), "{junit:?}");

    // The other commands refuse the run, too, each with a one-line message.
    let new = [
        "--engine",
        "deepspeed",
        "--stage",
        "2",
        "--shape",
        "coalesced-reduction",
        "--python",
        "./python",
    ];
    let run = [&["run", "--out", "own"][..], &new].concat();
    let repeat = [&run[..], &["--repeat", "3"]].concat();
    let minimise = [&run[..], &["--minimise"]].concat();
    let compare = [&["compare", "--a", "--ga=1", "--b", "--ga=2", "--"][..], &new].concat();
    for args in [run, repeat, minimise, compare] {
        let output = place.zprobe(&args);
        let stderr = text(&output.stderr);
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(
            stderr.contains("cannot run here: DeepSpeed 0.19.8 has no coalesce_grad_reduction"),
            "{stderr}"
        );
        assert!(stderr.contains("leave out --shape"), "{stderr}");
        assert!(!place.0.path().join("own").exists(), "nothing was recorded");
    }
    assert!(!place.0.path().join("starts").exists(), "no rank was started");
}

#[test]
fn a_suite_that_checked_no_real_engine_is_not_green() {
    let place = Place::new();
    place.write("probes/own.toml", "description = 'Own'\nengines = ['deepspeed', 'native']\n");
    let (code, suite) = place.check(&[]);
    assert_eq!((code, suite.exit_code), (2, 2));
    assert!(suite.unchecked.unwrap().starts_with("no real engine was checked"));
    let output = place.zprobe(&["check", "probes", "--python", "./python"]);
    let first = text(&output.stdout).lines().next().unwrap();
    assert!(first.starts_with("NOT CHECKED  no real engine was checked"), "{output:?}");
    place.probes();
    let (_, suite) = place.check(&["--filter", "known"]);
    assert_eq!(suite.unchecked, None, "one real engine is enough");
}

#[test]
fn where_no_engine_is_there_nothing_ran() {
    let place = Place::new();
    place.write("probes/own.toml", "description = 'Own'\nengines = ['deepspeed']\n");
    let (code, suite) = place.check(&[]);
    assert_eq!((code, suite.exit_code), (2, 2));
    assert_eq!(statuses(&suite), [("own", Status::Skipped)]);
}

#[test]
fn known_findings_are_written_accepted_and_run_out() {
    let place = Place::new();
    place.probes();
    let only = ["--filter", "crash"];
    let reason = ["--reason", "known, \"as such\"", "--expires", "2999-12-31"];
    let write = [&only[..], &["--write-baseline", "zprobe-baseline.toml"], &reason].concat();
    let (code, suite) = place.check(&write);
    assert_eq!((code, statuses(&suite)), (0, vec![("a-crash", Status::Accepted)]));

    // From now on zprobe finds the baseline by its default name.
    let (code, suite) = place.check(&only);
    assert_eq!((code, suite.count(Status::Accepted)), (0, 1));
    let accepted = suite.cases[0].findings[0].accepted.as_ref().unwrap();
    assert_eq!(
        (accepted.reason.as_str(), accepted.expires.as_str()),
        ("known, \"as such\"", "2999-12-31")
    );

    let written = place.read("zprobe-baseline.toml");
    place.write("old.toml", &written.replace("2999-12-31", "2020-12-31"));
    let (code, suite) = place.check(&[&only[..], &["--baseline", "old.toml"]].concat());
    assert_eq!((code, statuses(&suite)), (3, vec![("a-crash", Status::Crashed)]));
    assert_eq!(suite.notices[0].kind, NoticeKind::Expired);

    place.write("unused.toml", &written.replace("ZP901", "ZP101"));
    let (code, suite) = place.check(&[&only[..], &["--baseline", "unused.toml"]].concat());
    assert_eq!((code, suite.notices[0].kind), (3, NoticeKind::Unused));
}

#[test]
fn a_configuration_file_names_the_probes_and_how_they_are_run() {
    let place = Place::new();
    place.probes();
    let file = "[check]\nprobes = ['probes']\npython = './python'\noutput-format = 'concise'\n";
    place.write("zprobe.toml", file);
    let output = place.command(&["check"]).env("ZPROBE_FILTER", "known").output().unwrap();
    assert_eq!(text(&output.stdout).lines().count(), 1, "{output:?}");
    assert!(text(&output.stdout).starts_with("1 of 1 probe passed"), "{output:?}");

    place.write("zprobe.toml", &file.replace("python =", "pyton ="));
    let output = place.zprobe(&["check"]);
    assert_eq!(output.status.code(), Some(2));
    let message = "zprobe.toml:3:1: no such key `pyton`; did you mean `python`?";
    assert!(text(&output.stderr).contains(message), "{output:?}");
    let listed =
        place.zprobe(&["check", "--no-config", "probes", "--list", "--output-format", "json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let first = &listed[0];
    assert!(first["command"].as_str().unwrap().starts_with("zprobe run --engine "), "{listed}");
    assert!(first["probe"].is_string() && first["expected"].is_string(), "{listed}");
    let output = place.zprobe(&["check", "--no-config", "probes", "--list"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn probes_with_exact_weights_run_before_those_with_estimated_weights() {
    let place = Place::new();
    for (name, model) in [("a-dense", "mlp"), ("b-coded", "coded")] {
        let text = format!("description = 'Own'\nengines = ['ddp']\n[run]\nmodel = '{model}'\n");
        place.write(&format!("probes/{name}.toml"), &text);
    }
    let listed = place.zprobe(&["check", "probes", "--list", "--output-format", "json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let names: Vec<_> = (0..2).map(|place| listed[place]["probe"].as_str().unwrap()).collect();
    assert_eq!(names, ["b-coded", "a-dense"]);
}

#[test]
fn a_ci_is_told_in_the_forms_that_it_reads() {
    let place = Place::new();
    place.probes();
    fs::create_dir(place.0.path().join("out")).unwrap();
    let args = [
        "check",
        "probes",
        "--python",
        "./python",
        "--output-format",
        "github",
        "--export-json",
        "out/check.json",
        "--export-junit",
        "out/check.xml",
        "--export-sarif",
        "out/check.sarif",
    ];
    let output = place.command(&args).env("GITHUB_STEP_SUMMARY", "summary.md").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stdout = text(&output.stdout);
    let first = stdout.lines().next().unwrap();
    let start = "::error file=probes/a-crash.toml,line=1,title=ZP901 rank-died in ddp/a-crash::";
    assert!(first.starts_with(start), "{stdout}");
    assert!(place.read("summary.md").starts_with("### ❌ zprobe check\n\n1 of 3 probes passed"));
    let suite: Suite = serde_json::from_str(&place.read("out/check.json")).unwrap();
    assert_eq!(suite.exit_code, 3);
    let junit = quick_junit::Report::deserialize_from_str(&place.read("out/check.xml")).unwrap();
    assert_eq!((junit.tests, junit.errors, junit.failures), (3, 1, 1));
    let sarif: serde_json::Value = serde_json::from_str(&place.read("out/check.sarif")).unwrap();
    let uri = "/runs/0/results/0/locations/0/physicalLocation/artifactLocation/uri";
    assert_eq!(sarif.pointer(uri).unwrap(), "probes/a-crash.toml");
}

#[test]
fn a_baseline_that_the_configuration_names_is_written_the_first_time() {
    let place = Place::new();
    place.probes();
    place.write("ci/here", "");
    place.write("zprobe.toml", "[check]\nbaseline = 'ci/known.toml'\n");
    let check = |args: &[&str]| {
        let own = ["check", "probes", "--python", "./python", "--filter", "crash"];
        let output = place.zprobe(&[&own, args].concat());
        (output.status.code(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let (code, _, stderr) = check(&[]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("cannot find") && stderr.contains("ci/known.toml"), "{stderr}");

    let reason = ["--reason", "known", "--expires", "2999-12-31"];
    let write = |file| [&["--write-baseline", file], &reason[..]].concat();
    let accepted = "accepted: ddp/a-crash: ZP901 until 2999-12-31: known\n";
    let (code, stdout, stderr) = check(&write("./ci/../ci/known.toml"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(accepted) && stderr.contains("known.toml: 1 new"), "{stderr}");
    assert!(stdout.contains("accepted until 2999-12-31: known"), "{stdout}");
    assert!(!stderr.contains("crashed:"), "{stderr}");

    let (code, _, stderr) = check(&[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(accepted) && !stderr.contains("crashed:"), "{stderr}");
    // An accepted finding does not end a suite.
    let (code, _, stderr) = check(&["--fail-fast"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (_, _, stderr) = check(&write("ci/known.toml"));
    assert!(stderr.contains("known.toml: 0 new"), "{stderr}");
    let (code, _, stderr) = check(&write("not/there.toml"));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("there is no such directory"), "{stderr}");
}

/// The reason of a case that has no report.
fn reason(case: &Case) -> &str {
    case.reason.as_deref().unwrap_or_default()
}

#[test]
fn a_script_that_cannot_be_judged_fails_its_own_probe_only() {
    let place = Place::new();
    place.probes();
    place.script("probes/d-missing", "command = 'no-such-launcher train.py'\n");
    place.script("probes/e-fails", "command = ['sh', '-c', 'echo so sorry; exit 7']\n");
    place.script("probes/f-untrained", "command = 'true'\n");
    place.script("probes/g-hangs", "command = 'sleep 1000'\ntimeout = 1\n");
    // A script chooses its engine itself, so --engine does not leave it out.
    let args = ["--engine", "ddp", "--export-junit", "junit.xml"];
    let (code, suite) = place.check(&args);
    let expected = [
        ("a-crash", Status::Crashed),
        ("b-silent", Status::Inconclusive),
        ("c-known", Status::Passed),
        ("d-missing", Status::NotRun),
        ("e-fails", Status::Crashed),
        ("f-untrained", Status::Inconclusive),
        ("g-hangs", Status::Inconclusive),
    ];
    assert_eq!((code, statuses(&suite)), (3, expected.to_vec()));
    let [missing, fails, untrained, hangs] = &suite.cases[3..] else { unreachable!() };
    assert!(reason(missing).starts_with("cannot start no-such-launcher"), "{missing:?}");
    assert!(reason(fails).starts_with("the command failed with exit code 7"), "{fails:?}");
    assert!(reason(untrained).contains("no process of the command called backward"));
    assert!(reason(hangs).starts_with("no process called backward in time"), "{hangs:?}");
    assert!(fails.command.ends_with(" zprobe exec -- sh -c 'echo so sorry; exit 7'"), "{fails:?}");
    assert!(hangs.command.ends_with(" zprobe exec --timeout 1 -- sleep 1000"), "{hangs:?}");
    assert_eq!((fails.id().as_str(), missing.run_dir.as_ref()), ("script/e-fails", None));
    let dir = fails.run_dir.as_ref().unwrap();
    assert!(place.read(&format!("{}/output.log", dir.display())).starts_with("so sorry\n"));

    let junit = quick_junit::Report::deserialize_from_str(&place.read("junit.xml")).unwrap();
    let scripts = junit.test_suites.iter().find(|it| it.name.as_str() == "zprobe.script").unwrap();
    assert_eq!((scripts.test_cases.len(), scripts.errors, scripts.failures), (4, 2, 2));

    let listed = place.zprobe(&["list", "runs"]);
    let listed = text(&listed.stdout);
    assert!(
        listed.contains("/script/e-fails") && listed.contains("    zprobe check probes"),
        "{listed}"
    );
    assert!(!listed.contains("zprobe exec"), "{listed}");
}

#[test]
fn the_screen_shows_each_script_and_the_end_of_the_output_of_one_without_a_report() {
    let place = Place::new();
    place.script("probes/fails", "command = ['sh', '-c', 'echo so sorry >&2; exit 7']\n");
    let asked = place.0.path().join("asked");
    place.write("python", &format!("#!/bin/sh\ntouch '{}'\n", asked.display()));
    let output = place.zprobe(&["check", "probes", "--python", "./python"]);
    assert!(!asked.exists(), "an interpreter has no part in a suite of scripts");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.contains("/script/fails/output.log:\n  so sorry\ncrashed: script/fails: "),
        "{stderr}"
    );
    assert!(stdout.contains("again: PATH=$PWD:$PATH zprobe exec -- sh -c"), "{stdout}");
    assert!(!stdout.contains("next: "), "there is no report to show: {stdout}");
}

#[test]
fn the_programs_of_a_script_are_those_of_the_environment() {
    let place = Place::new();
    place.script("probes/own", "command = 'own-launcher train.py'\n");
    place.write("venv/bin/own-launcher", "#!/bin/sh\nexit 9\n");
    place.write("venv/bin/python", "#!/bin/sh\nexit 1\n");
    for name in ["own-launcher", "python"] {
        let path = place.0.path().join("venv/bin").join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let args = ["check", "probes", "--python", "venv", "--output-format", "json"];
    let suite: Suite = serde_json::from_slice(&place.zprobe(&args).stdout).unwrap();
    let case = &suite.cases[0];
    assert!(reason(case).starts_with("the command failed with exit code 9"), "{case:?}");
    let again = "PATH=$PWD/venv/bin:$PATH zprobe exec -- own-launcher train.py";
    assert_eq!(case.command, again);
}

#[test]
fn scripts_run_one_after_the_other_and_the_others_not_at_all_after_a_failure() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        let alone = "command = ['sh', '-c', 'mkdir busy && sleep 1 && rmdir busy']\n";
        place.script(&format!("probes/{name}"), alone);
    }
    let (code, suite) = place.check(&["--jobs", "3"]);
    assert_eq!((code, suite.count(Status::Inconclusive)), (4, 3), "{suite:?}");
    let (_, suite) = place.check(&["--jobs", "3", "--fail-fast"]);
    assert_eq!((suite.count(Status::Inconclusive), suite.count(Status::Skipped)), (1, 2));
}
