//! Scripts as probes of `zprobe check`: the verdicts are those of `zprobe exec`.

use std::fs;
use std::process::Command;

use tempfile::TempDir;
use zprobe_report::suite::{Status, Suite};

use super::{file, python, scripts, text};

/// Writes a probe of a script of `examples/train` on two forked ranks.
fn probe(dir: &TempDir, name: &str, keys: &str, words: &[&str]) {
    let (python, ranks) = (python(), file("tests/engines/exec/ranks.py"));
    let command = [&[text(&python), text(&ranks), "2"], words].concat();
    let probe = format!("description = 'Ours'\n[exec]\n{keys}\ncommand = {command:?}\n");
    fs::create_dir_all(dir.path().join("probes")).expect("a directory");
    fs::write(dir.path().join(format!("probes/{name}.toml")), probe).expect("a probe");
}

/// Writes a copy of `ddp.py` in which the text `old` is replaced.
fn planted(dir: &TempDir, name: &str, old: &str, new: &str) {
    let script = fs::read_to_string(dir.path().join("ddp.py")).expect("ddp.py");
    assert!(script.contains(old), "{old}");
    fs::write(dir.path().join(name), script.replace(old, new)).expect("a script");
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn a_suite_has_the_verdicts_of_scripts_and_goes_on_after_each() {
    let dir = scripts();
    planted(&dir, "never.py", "quiet = not last and", "quiet = True and");
    planted(&dir, "late.py", "    if args.out and", "    raise SystemExit(7)\n    if args.out and");
    probe(&dir, "a-leaves-no-sync-never", "", &["never.py", "--accumulate", "2"]);
    probe(&dir, "b-right", "", &["ddp.py", "--accumulate", "2"]);
    probe(&dir, "c-observed", "observe = 2", &["ddp.py", "--steps", "4"]);
    probe(&dir, "d-fails-at-its-end", "observe = 2", &["late.py", "--steps", "4"]);
    let output = Command::new(env!("CARGO_BIN_EXE_zprobe"))
        .args(["check", "probes", "--output-format", "json", "--python", text(&python())])
        .current_dir(dir.path())
        .env("OMP_NUM_THREADS", "1")
        .output()
        .expect("zprobe");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let suite: Suite = serde_json::from_slice(&output.stdout).expect("a suite");
    let statuses: Vec<Status> = suite.cases.iter().map(|case| case.status).collect();
    let expected = [Status::Failed, Status::Passed, Status::Passed, Status::Crashed];
    assert_eq!(statuses, expected, "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let [wrong, right, _, late] = &suite.cases[..] else { unreachable!() };
    assert_eq!(wrong.findings[0].finding.code, "ZP104", "{wrong:?}");
    let place = wrong.findings[0].finding.location.as_ref().expect("a line of the script");
    assert_eq!(place.file, "never.py");
    assert!(right.versions.contains_key("torch") && right.run_dir.is_none(), "{right:?}");
    let why = "no finding, but the script failed with exit code";
    assert!(late.reason.as_ref().is_some_and(|reason| reason.starts_with(why)), "{late:?}");
    assert!(stderr.contains("passed: script/b-right ("), "{stderr}");
}
