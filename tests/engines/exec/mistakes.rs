//! Tests of the mistakes of `fixtures/mistakes/mistakes.toml`, planted into scripts.

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::super::changes::{Change, Changes};
use super::{file, full, scripts, train};

/// Mistakes that findings name, with the code of the finding and a part of its message.
const NAMED: &[(&str, &str, &str)] = &[
    ("ddp-never-synchronised", "ZP104", "were not averaged across ranks"),
    ("ddp-flag-set-after-forward", "ZP104", "of microbatches 1 and 2 were not averaged"),
    ("ddp-cleared-in-the-middle", "ZP102", "of microbatches 0 and 1 of every rank"),
    ("ddp-not-in-the-optimizer", "ZP401", "are held by no rank's optimizer"),
    ("ddp-never-cleared", "ZP106", "of an earlier step"),
    ("ddp-cleared-before-the-step", "ZP605", "the optimizer had no gradients"),
    ("ddp-noise-in-gradients", "ZP605", "changed between the last backward"),
    ("ddp-mean-of-means", "ZP109", "a mean of means"),
    ("ddp-mean-over-samples", "ZP109", "a mean over the means of samples"),
    ("ddp-divided-by-accumulation-too", "ZP111", "divided by the accumulation steps (4) twice"),
    ("ddp-never-divided-by-accumulation", "ZP111", "never divided by the accumulation steps (4)"),
    ("ddp-sign-of-the-loss-on-a-rank", "ZP113", "has -1 times the weight"),
    ("ddp-unequal-microbatches", "ZP108", "rank 0 ran 3 microbatches"),
    ("ddp-tokens-of-the-own-rank", "ZP109", "every rank weighs the same"),
    (
        "ddp-twice-in-the-optimizer",
        "ZP401",
        "3904 elements of head.weight are held twice by the optimizers of one rank",
    ),
    ("ddp-only-first-synchronised", "ZP104", "of microbatches 1, 2 and 3 were not averaged"),
    ("ddp-cleared-in-every-microbatch", "ZP102", "of microbatches 0 and 1 of every rank"),
    ("accelerate-without-accumulate", "ZP110", "set to accumulate over 3 microbatches"),
    ("accelerate-optimizer-not-prepared", "ZP110", "set to accumulate over 3 microbatches"),
    ("ddp-wrong-world-size", "ZP111", "divided by the number of ranks (2) twice"),
    (
        "fsdp2-only-first-synchronised",
        "ZP106",
        "of microbatches 1 and 2 of every rank reaches the optimizer one step late",
    ),
    ("fsdp2-never-synchronised", "ZP102", "no gradient reached the optimizer"),
    ("fsdp2-summed-at-the-root", "ZP105", "weight 2 instead of 1"),
    (
        "fsdp2-averaged-in-blocks",
        "ZP111",
        "0.5 times the weight of a mean in the update of all parameters but head.weight",
    ),
    ("ddp-penalty-in-every-microbatch", "ZP112", "never divided by the accumulation steps (4)"),
    (
        "ddp-auxiliary-loss-on-every-rank",
        "ZP112",
        "divided neither by the accumulation steps (2) nor",
    ),
    ("megatron-buffer-never-cleared", "ZP106", "of an earlier step"),
    ("megatron-never-finalized", "ZP104", "were not averaged across ranks"),
    ("megatron-no-sync-inverted", "ZP101", "the boundary microbatch 2 was not averaged"),
    ("megatron-tokens-divided-twice", "ZP111", "then divided by a number of elements again"),
    (
        "megatron-divided-by-accumulation-too",
        "ZP111",
        "divided by the accumulation steps (3) twice",
    ),
    (
        "megatron-finalized-in-each-microbatch",
        "ZP111",
        "never divided by the accumulation steps (3)",
    ),
];

/// Mistakes that are remarks only, with a part of the remark: they are no errors, or only the user knows the
/// intention.
const REMARKED: &[(&str, &str)] = &[
    ("ddp-forward-outside-no-sync", "over the ranks in each of the 3 microbatches"),
    ("ddp-synchronised-in-every-microbatch", "over the ranks in each of the 4 microbatches"),
    ("ddp-clipped-by-value", "clips gradients by value"),
    ("ddp-schedule-in-every-microbatch", "schedule steps 3 times in each optimizer step"),
    ("ddp-layer-skipped-on-a-rank", "rank 1 had no gradient of blocks.1."),
];

/// The mistakes that represent all others in an everyday test.
const FEW: [&str; 7] = [
    "ddp-flag-set-after-forward",
    "ddp-noise-in-gradients",
    "ddp-forward-outside-no-sync",
    "ddp-schedule-in-every-microbatch",
    "fsdp2-averaged-in-blocks",
    "fsdp2-only-first-synchronised",
    "megatron-buffer-never-cleared",
];

pub fn mistakes() -> BTreeMap<String, Change> {
    let path = file("fixtures/mistakes/mistakes.toml");
    let mistakes = Changes::read(&path).expect("the mistakes").mistake.into_iter();
    mistakes.map(|it| (it.change.name.clone(), it.change)).collect()
}

/// A directory with the example scripts, in which a mistake is planted.
pub fn planted(mistake: &Change) -> TempDir {
    planted_in(scripts(), mistake)
}

/// The directory of scripts, in which a mistake is now planted.
pub fn planted_in(dir: TempDir, mistake: &Change) -> TempDir {
    mistake.plant(dir.path()).expect("a place for each edit");
    dir
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn mistakes_are_named() {
    let mistakes = mistakes();
    for (name, code, part) in NAMED.iter().filter(|it| full() || FEW.contains(&it.0)) {
        let mistake = &mistakes[*name];
        let options = ["--weighting", "token"];
        let dir = planted(mistake);
        let run = train(dir, &options, mistake.world, &mistake.script, &mistake.flags);
        let found = run.findings();
        let is_it = |line: &str| line.starts_with(code) && line.contains(part);
        assert!(found.lines().any(is_it), "{name}: {found}{}", run.stderr);
        assert_eq!(run.code, 1, "{name}");
    }
}

#[test]
#[ignore = "needs an interpreter with torch and DeepSpeed"]
fn what_is_no_error_is_remarked() {
    let mistakes = mistakes();
    for (name, part) in REMARKED.iter().filter(|it| full() || FEW.contains(&it.0)) {
        let mistake = &mistakes[*name];
        let run = train(planted(mistake), &[], mistake.world, &mistake.script, &mistake.flags);
        let remarks = &run.report().remarks;
        assert!(remarks.iter().any(|remark| remark.contains(part)), "{name}: {remarks:?}");
        assert_eq!(run.code, 0, "{name}: {}", run.findings());
    }
}
