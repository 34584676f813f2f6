//! Tests of the scripts in `fixtures/frameworks` that need no more packages than the other tests: one of each family.
//!
//! `cargo xtask frameworks` runs all scripts, each with its packages, and writes docs/frameworks.md.

use zprobe_report::Verdict;

use super::super::changes::Changes;
use super::mistakes::planted_in;
use super::{Run, copy_of, file, train};

/// Right scripts, each with its flags and the options of zprobe.
const RIGHT: [(&str, &str, &[&str]); 2] = [
    ("trl_dpo.py", "--accumulate 2 --steps 4", &[]),
    ("optimizers.py", "--accumulate 2 --steps 5 --optimizer muon", &["--observe"]),
];

/// Mistakes, each with more flags.
const MISTAKES: [(&str, &str); 2] = [
    ("trl-reward-cleared-in-each-microbatch", ""),
    ("optimizers-head-left-out", "--optimizer muon"),
];

fn folder() -> std::path::PathBuf {
    file("fixtures/frameworks")
}

fn codes(run: &Run) -> Vec<&str> {
    run.report().findings.iter().map(|it| it.code.as_str()).collect()
}

#[test]
#[ignore = "needs an interpreter with torch and the trainers"]
fn scripts_of_frameworks_are_clean() {
    for (script, flags, options) in RIGHT {
        let run = train(copy_of(&folder()), options, 2, script, flags);
        let verdict = run.report().verdict;
        assert_eq!(verdict, Verdict::Clean, "{script}: {}\n{}", run.findings(), run.stderr);
    }
}

#[test]
#[ignore = "needs an interpreter with torch and the trainers"]
fn mistakes_in_scripts_of_frameworks_are_named() {
    let set = Changes::read(&folder().join("set.toml")).expect("the mistakes");
    for (name, flags) in MISTAKES {
        let mistake = set.mistake.iter().find(|it| it.change.name == name).expect("a mistake");
        let change = &mistake.change;
        let dir = planted_in(copy_of(&folder()), change);
        let flags = format!("{} {flags}", change.flags);
        let run = train(dir, &[], change.world, &change.script, &flags);
        let is_named = codes(&run).iter().any(|code| mistake.names().contains(code));
        assert!(is_named, "{name}: {}\n{}", run.findings(), run.stderr);
    }
}
