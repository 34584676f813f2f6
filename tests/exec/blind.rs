//! The mistakes and harmless changes of `fixtures/mistakes/blind.toml`, written by a hand that had not seen the rules.
//!
//! docs/accuracy.md has what all of them gave, and those that are missed.

use std::fs;

use serde::Deserialize;
use zprobe::report::{Report, Verdict};

use super::mistakes::{Mistake, planted};
use super::{file, full, train};

/// The file.
#[derive(Deserialize)]
struct Blind {
    mistake: Vec<Wrong>,
    harmless: Vec<Mistake>,
}

/// A mistake with its kind.
#[derive(Deserialize)]
struct Wrong {
    finding: String,
    #[serde(flatten)]
    change: Mistake,
}

/// The rules that name each kind of mistake.
const NAMES: &[(&str, &[&str])] = &[
    ("factor", &["ZP111", "ZP112", "ZP105"]),
    ("extra-loss", &["ZP112", "ZP111", "ZP113"]),
    ("weight", &["ZP113", "ZP109", "ZP105", "ZP111"]),
    ("clipping", &["ZP607"]),
    ("earlier-steps", &["ZP106"]),
    ("window", &["ZP110", "ZP111", "ZP112"]),
    ("not-reduced", &["ZP104", "ZP101", "ZP106"]),
    ("never-reduced", &["ZP104", "ZP102"]),
    ("lost", &["ZP102", "ZP113"]),
    ("cut-off", &["ZP203"]),
    ("settings", &["ZP608"]),
    ("unequal-tokens", &["ZP109", "ZP111"]),
    ("stale", &["ZP602", "ZP401", "ZP609", "ZP203"]),
    ("not-in-optimizer", &["ZP401"]),
    ("nothing-arrives", &["ZP605", "ZP102"]),
    ("twice-in-optimizer", &["ZP401"]),
    ("stepped-twice", &["ZP606"]),
    ("step-skipped", &["ZP606"]),
    ("changed-before-step", &["ZP605"]),
    ("initialisation", &["ZP601"]),
    ("swallowed", &["ZP610"]),
    ("crash", &["ZP901"]),
    ("hang", &["ZP902"]),
    ("unequal-microbatches", &["ZP108"]),
];

/// Changes that stand for the others.
const FEW: [&str; 9] = [
    "ddp-divided-by-accumulation-too",
    "ddp-bf16-swallows-updates",
    "ddp-running-total-backward",
    "ddp-tokens-of-last-microbatch",
    "gan-clips-the-other-network",
    "terms-entropy-by-microbatch",
    "terms-head-through-data",
    "ddp-means-of-microbatches",
    "ddp-loss-halved-on-purpose",
];

fn blind() -> Blind {
    let text = fs::read_to_string(file("fixtures/mistakes/blind.toml")).expect("the changes");
    toml::from_str(&text).expect("changes")
}

fn is_tried(change: &Mistake) -> bool {
    full() || FEW.contains(&change.name())
}

/// The report of a changed script, none if there is none, and its findings in a line. Lightning's scripts start their
/// own ranks.
fn told(change: &Mistake, options: &[&str]) -> (Option<Report>, String) {
    let ranks = if change.script.starts_with("lightning") { 1 } else { change.world };
    let run = train(planted(change), options, ranks, &change.script, &change.flags);
    let findings = run.report.as_ref().map_or(String::new(), |_| run.findings());
    (run.report, format!("{} ({}): {findings}", change.name(), run.code))
}

/// Checks that no harmless change raises an alarm.
fn are_silent(options: &[&str]) {
    let changes = blind().harmless;
    let told = changes.iter().filter(|it| is_tried(it)).map(|change| told(change, options));
    let is_alarm =
        |report: &Option<Report>| report.as_ref().is_some_and(|it| it.verdict == Verdict::Findings);
    let alarms: Vec<String> =
        told.filter(|(report, _)| is_alarm(report)).map(|(_, told)| told).collect();
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

/// Checks that at least this share of the mistakes, in percent, is found and named.
fn are_named(options: &[&str], share: usize) {
    let mistakes = blind().mistake;
    let mut missed = Vec::new();
    let mut tried = 0;
    for Wrong { finding, change } in mistakes.iter().filter(|it| is_tried(&it.change)) {
        let (_, codes) = NAMES.iter().find(|(kind, _)| kind == finding).expect("a known kind");
        let (report, told) = told(change, options);
        let findings = report.iter().flat_map(|report| &report.findings);
        tried += 1;
        if !findings.map(|it| it.code.as_str()).any(|code| codes.contains(&code)) {
            missed.push(told);
        }
    }
    let named = tried - missed.len();
    assert!(100 * named >= share * tried, "{named} of {tried}:\n{}", missed.join("\n"));
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers"]
fn harmless_changes_raise_no_alarm() {
    are_silent(&[]);
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers"]
fn planted_mistakes_are_named() {
    are_named(&[], if full() { 95 } else { 100 });
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers; an hour on two cores"]
fn with_its_own_gradients_a_script_tells_as_much() {
    if full() {
        are_silent(&["--observe"]);
        are_named(&["--observe"], 85);
    }
}
