//! The mistakes and harmless changes of `fixtures/mistakes/blind.toml`, written by a hand that had not seen the rules.

use std::fs;

use serde::Deserialize;
use zprobe::report::Verdict;

use super::mistakes::{Mistake, planted};
use super::{file, full, train};

/// The file.
#[derive(Deserialize)]
struct Blind {
    mistake: Vec<Mistake>,
    harmless: Vec<Mistake>,
}

/// Changes that stand for the others.
const FEW: [&str; 4] = [
    "ddp-divided-by-accumulation-too",
    "terms-entropy-by-microbatch",
    "ddp-means-of-microbatches",
    "ddp-loss-halved-on-purpose",
];

fn blind() -> Blind {
    let text = fs::read_to_string(file("fixtures/mistakes/blind.toml")).expect("the changes");
    toml::from_str(&text).expect("changes")
}

/// The verdict and the findings of a changed script, in a line; Lightning's scripts start their own ranks.
fn told(change: &Mistake, options: &[&str]) -> (Option<Verdict>, String) {
    let ranks = if change.script.starts_with("lightning") { 1 } else { change.world };
    let run = train(planted(change), options, ranks, &change.script, &change.flags);
    let findings = run.report.as_ref().map_or(String::new(), |_| run.findings());
    let verdict = run.report.as_ref().map(|report| report.verdict);
    (verdict, format!("{} ({}): {findings}", change.name(), run.code))
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers"]
fn harmless_changes_raise_no_alarm() {
    let changes = blind().harmless;
    let few = changes.iter().filter(|it| full() || FEW.contains(&it.name()));
    let alarms: Vec<String> = few
        .map(|change| told(change, &[]))
        .filter(|(verdict, _)| *verdict == Some(Verdict::Findings))
        .map(|(_, told)| told)
        .collect();
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers"]
fn planted_mistakes_are_found() {
    let changes = blind().mistake;
    let tried: Vec<&Mistake> =
        changes.iter().filter(|it| full() || FEW.contains(&it.name())).collect();
    let missed: Vec<String> = tried
        .iter()
        .map(|change| told(change, &[]))
        .filter(|(verdict, _)| matches!(verdict, Some(Verdict::Clean)))
        .map(|(_, told)| told)
        .collect();
    // The table of docs/accuracy.md has those that are missed.
    let most = if full() { tried.len() / 5 } else { 0 };
    assert!(missed.len() <= most, "{} of {}:\n{}", missed.len(), tried.len(), missed.join("\n"));
}
