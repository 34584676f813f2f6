//! `zprobe issue` for the trainers whose scripts `zprobe exec` watches.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The maximum number of lines of an issue.
const MOST_LINES: usize = 120;

/// The headings of the projects' forms, in order.
const FORMS: [(&str, &[&str]); 3] = [
    (
        "transformers",
        &[
            "### System Info",
            "### Who can help?",
            "### Information",
            "### Tasks",
            "### Reproduction",
            "### Expected behavior",
        ],
    ),
    (
        "accelerate",
        &[
            "### System Info",
            "### Information",
            "### Tasks",
            "### Reproduction",
            "### Expected behavior",
        ],
    ),
    (
        "lightning",
        &[
            "### Bug description",
            "### What version are you seeing the problem on?",
            "### How to reproduce the bug",
            "### Error messages and logs",
            "### Environment",
            "### More info",
        ],
    ),
];

/// The text of the issue about a recorded run.
fn issue(fixture: &str, words: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join(".zprobe/runs/run");
    fs::create_dir_all(&run).unwrap();
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces");
    fs::copy(traces.join(fixture).join("trace.jsonl"), run.join("trace.jsonl")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zprobe"));
    command.args(["issue", "--force", "--print"]).args(words).current_dir(dir.path());
    let output = command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The level-three headings of an issue.
fn headings(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("### ")).collect()
}

#[test]
fn a_script_with_a_trainer_has_the_form_of_the_trainers_project() {
    for (fixture, project) in
        [("script-windows-differ", "accelerate"), ("script-scaled-by-microbatch", "lightning")]
    {
        let expected = FORMS.iter().find(|(name, _)| *name == project).unwrap().1;
        let text = issue(fixture, &[]);
        assert_eq!(headings(&text), expected, "{fixture}:\n{text}");
    }
    let text = issue("script-noise", &[]);
    assert_eq!(headings(&text)[0], "### Describe the bug", "{text}");
}

#[test]
fn every_form_of_a_script_has_few_lines() {
    for fixture in ["script-windows-differ", "script-scaled-by-microbatch", "script-noise"] {
        for project in FORMS.map(|(name, _)| name).into_iter().chain(["deepspeed", "pytorch"]) {
            let text = issue(fixture, &["--for", project]);
            let lines = text.lines().count();
            assert!(lines <= MOST_LINES, "{fixture}, {project}: {lines} lines\n{text}");
            if let Some((_, expected)) = FORMS.iter().find(|(name, _)| *name == project) {
                assert_eq!(headings(&text), *expected);
            }
        }
    }
}
