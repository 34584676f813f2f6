//! Texts of issues in `docs/issues`, compared with the output of `zprobe issue --print` on a new run.

use std::fs;
use std::path::PathBuf;

use regex::Regex;

use super::page::Installed;
use super::place::Place;
use super::{root, same};

/// The names of the texts, each with the package of its engine and the flags of the run.
pub const ISSUES: &[(&str, &str, &str)] = &[
    (
        "deepspeed-stage3-stale-gradient",
        "deepspeed==0.19.8",
        "--engine deepspeed --stage 3 --ga 2 --shape unused-alternating",
    ),
    (
        "ddp-unmanaged-boundary",
        "torch==2.11.0",
        "--engine ddp --ga 4 --dtype fp32 --shape unmanaged",
    ),
    (
        "fsdp2-divide-factor-squared",
        "torch==2.11.0",
        "--engine fsdp2 --replicas 2 --force-sum-reduction true --gradient-divide-factor 2 --dtype fp32",
    ),
];

/// The file with a text.
fn path(name: &str) -> PathBuf {
    root().join("docs/issues").join(name).with_extension("md")
}

/// The text without the facts about the machine: its system, and the output of the engine's own script about
/// the machine.
fn without_machine(text: &str) -> String {
    let facts = [
        (r"(?m)^ - (OS|GPU count and types|Python version): .*$", " - $1: …"),
        (
            r"(?s)(<summary>(?:ds_report|python -m torch\.utils\.collect_env)</summary>\n\n```text\n).*?(\n```)",
            "$1…$2",
        ),
    ];
    facts.iter().fold(text.to_owned(), |text, (pattern, words)| {
        let pattern = Regex::new(pattern).unwrap();
        assert!(pattern.is_match(&text), "{pattern} is not in\n{text}");
        pattern.replace_all(&text, *words).into_owned()
    })
}

/// Makes the run and its issue. Returns the difference between the file and the new text, or corrects the
/// file with `ZPROBE_BLESS`.
fn difference(name: &str, package: &str, flags: &str) -> Option<String> {
    let mut place = Place::new();
    place.have(&[Installed { package: package.to_owned(), dir: ".venv".into() }]);
    let run = place.type_in(&format!("zprobe run {flags} --output-format concise"));
    assert_eq!(run.code, 1, "{name}: {}", run.text);
    let printed = without_machine(&place.print(&["issue", "--print", "--python", ".venv"]));
    if std::env::var_os("ZPROBE_BLESS").is_some() {
        fs::write(path(name), printed).unwrap();
        return None;
    }
    same::difference(&fs::read_to_string(path(name)).unwrap(), &printed)
}

#[test]
#[ignore = "needs the native engine, and makes Python environments"]
fn issues_are_what_zprobe_makes_today() {
    if std::env::var_os("ZPROBE_TEST_FULL").is_none() {
        println!("skipped: only with ZPROBE_TEST_FULL: three runs of engines");
        return;
    }
    let wrong: Vec<String> = ISSUES
        .iter()
        .filter_map(|(name, package, flags)| {
            Some(format!("{name}: {}", difference(name, package, flags)?))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_text_of_an_issue_is_tested() {
    let entries = fs::read_dir(root().join("docs/issues")).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let mut tested: Vec<PathBuf> = ISSUES.iter().map(|(name, ..)| path(name)).collect();
    tested.sort();
    assert_eq!(found, tested);
}
