//! Mistakes and harmless changes that were written without knowledge of the rules.
//!
//! `fixtures/mistakes/blind.toml` changes the scripts of `examples/train`.
//! `fixtures/mistakes/{second,third,fourth,fifth}/set.toml` change the scripts of their own folders.
//!
//! docs/accuracy.md has the results of all sets, and the missed mistakes.

use zprobe_report::{Report, Verdict};

use super::super::changes::{Change, Changes};
use super::mistakes::planted_in;
use super::{copy_of, file, full, train};

/// The sets of changes. The share of the second set that has to be named is the measured one: a smaller share
/// would be a regression.
const FIRST: Set = Set { path: "blind.toml", scripts: "examples/train", named: 95 };
const SECOND: Set = Set { path: "second/set.toml", scripts: "fixtures/mistakes/second", named: 80 };
const THIRD: Set = Set { path: "third/set.toml", scripts: "fixtures/mistakes/third", named: 65 };
const FOURTH: Set = Set { path: "fourth/set.toml", scripts: "fixtures/mistakes/fourth", named: 90 };
const FIFTH: Set = Set { path: "fifth/set.toml", scripts: "fixtures/mistakes/fifth", named: 83 };

/// A file of changes, and the requirement on their findings.
struct Set {
    path: &'static str,
    /// The folder of the scripts that are changed.
    scripts: &'static str,
    /// The share of the mistakes, in percent, that has to be named in runs with codes.
    named: usize,
}

/// The changes that represent all others in an everyday test.
const FEW: [&str; 23] = [
    "ddp-divided-by-accumulation-too",
    "ddp-bf16-swallows-updates",
    "ddp-running-total-backward",
    "ddp-tokens-of-last-microbatch",
    "gan-clips-the-other-network",
    "terms-entropy-by-microbatch",
    "terms-head-through-data",
    "ddp-means-of-microbatches",
    "cls-ema-left-in-model",
    "lora-head-stepped-on-rank-0",
    "lora-clip-each-optimizer",
    "kd-world-forgotten",
    "zero-torch-backward",
    "click-no-sampler",
    "click-strategy",
    "fsdp2-clip-layers-only",
    "gpt-step-in-micro",
    "reg-head-after-ddp",
    "pack-seg-count",
    "grad-hooks",
    "mc-m2",
    "det-m1",
    "ps-reduce",
];

fn changes(set: &Set) -> Changes {
    Changes::read(&file("fixtures/mistakes").join(set.path)).expect("the changes")
}

fn is_tried(change: &Change) -> bool {
    full() || FEW.contains(&change.name.as_str())
}

/// Runs a changed script. Returns the report, if zprobe wrote one, and the findings as one line.
fn told(set: &Set, change: &Change, options: &[&str]) -> (Option<Report>, String) {
    let dir = planted_in(copy_of(&file(set.scripts)), change);
    let run = train(dir, options, change.world, &change.script, &change.flags);
    let findings = run.report.as_ref().map_or(String::new(), |_| run.findings());
    (run.report, format!("{} ({}): {findings}", change.name, run.code))
}

/// Checks that no harmless change causes an alarm.
fn are_silent(set: &Set, options: &[&str]) {
    let changes = changes(set).harmless;
    let told = changes.iter().filter(|it| is_tried(it)).map(|change| told(set, change, options));
    // A script that does not run at all shows nothing, so a missing report counts as an alarm.
    let is_alarm =
        |report: &Option<Report>| report.as_ref().is_none_or(|it| it.verdict == Verdict::Findings);
    let alarms: Vec<String> =
        told.filter(|(report, _)| is_alarm(report)).map(|(_, told)| told).collect();
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

/// Checks that at least `share` percent of the mistakes are found and named.
fn are_named(set: &Set, options: &[&str], share: usize) {
    let mistakes = changes(set).mistake;
    let mut missed = Vec::new();
    let mut tried = 0;
    for mistake in mistakes.iter().filter(|it| is_tried(&it.change)) {
        let (report, told) = told(set, &mistake.change, options);
        let findings = report.iter().flat_map(|report| &report.findings);
        tried += 1;
        if !findings.map(|it| it.code.as_str()).any(|code| mistake.names().contains(&code)) {
            missed.push(told);
        }
    }
    let named = tried - missed.len();
    assert!(100 * named >= share * tried, "{named} of {tried}:\n{}", missed.join("\n"));
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers"]
fn harmless_changes_raise_no_alarm() {
    for set in [FIRST, SECOND, THIRD, FOURTH, FIFTH] {
        are_silent(&set, &[]);
    }
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers"]
fn planted_mistakes_are_named() {
    for set in [FIRST, SECOND, THIRD, FOURTH, FIFTH] {
        are_named(&set, &[], if full() { set.named } else { 100 });
    }
}

#[test]
#[ignore = "needs an interpreter with torch, DeepSpeed and the trainers; hours on two cores"]
fn with_its_own_gradients_a_script_tells_as_much() {
    if full() {
        are_silent(&FIRST, &["--observe"]);
        are_silent(&SECOND, &["--observe"]);
        are_named(&FIRST, &["--observe"], 85);
    }
}
