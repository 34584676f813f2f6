//! Repeats, and the search for the smallest configuration, from end to end.

use std::collections::BTreeSet;

use zprobe_model::spec::Fault;
use zprobe_report::Verdict;

use crate::support::zprobe;

/// Faults that depend on chance: the result of a single run is not determined.
pub const RACES: &[Fault] = &[Fault::HostCopyRaces];

#[test]
fn twenty_repeats_of_a_healthy_run_are_equal_to_the_last_bit() {
    for settings in [
        "--stage 1",
        "--stage 2 --overlap-comm --offload cpu --nproc-per-node 3",
        "--stage 3 --model mlp --nproc-per-node 3",
    ] {
        let run = zprobe(&format!("{settings} --repeat 20"));
        assert_eq!(run.code, 0, "{settings}\n{run}");
        let repeats = run.report.repeats.clone().unwrap();
        assert_eq!(repeats.verdicts, [Verdict::Clean; 20], "{settings}");
        assert!(repeats.differences.is_empty(), "{settings}");
    }
}

#[test]
fn a_copy_that_nobody_waits_for_is_a_race_and_diagnosing_it_again_says_the_same() {
    // Each repeat makes one copy, so some repeats are right, and some are not.
    let run = zprobe(
        "--stage 1 --nproc-per-node 1 --steps 1 --offload cpu --inject host-copy-races --repeat 20",
    );
    assert_eq!(run.code, 1, "{run}");
    let [race] = &run.report.findings[..] else { panic!("more than the race: {run}") };
    assert_eq!(race.code, "ZP905", "{run}");
    let late = race.consequences.iter().find(|it| it.code == "ZP701");
    let late = late.unwrap_or_else(|| panic!("{run}"));
    assert!(late.message.contains("of 20 repeats: repeats"), "{}", late.message);
    assert!(race.message.contains("of 20 repeats"), "{}", race.message);
    assert!(race.message.ends_with("first in the optimizer's input"), "{}", race.message);
    let verdicts: BTreeSet<_> = run.report.repeats.clone().unwrap().verdicts.into_iter().collect();
    assert!(verdicts.contains(&Verdict::Findings), "a late copy is found by itself: {run}");
    let (code, text) = run.diagnose("json");
    assert_eq!((code, serde_json::from_str(&text).ok()), (1, Some(run.report)));
}

#[test]
fn a_leak_in_a_large_configuration_is_found_in_the_smallest_that_has_it() {
    let run = zprobe(
        "--nproc-per-node 4 --ga 8 --steps 3 --stage 1 --inject boundary-leak --dataflow ipg-bucket \
         --reduce-scatter false --gradient-clipping 100000 --shape tied --minimise",
    );
    assert_eq!(run.code, 1, "{run}");
    let minimised = run.report.minimised.clone().unwrap();
    assert!(minimised.complete);
    assert_eq!(
        minimised.command,
        "zprobe run --ga 1 --device cpu --steps 1 --inject boundary-leak"
    );
    assert!(minimised.trials.iter().any(|trial| !trial.kept));
    let (_, concise) = run.diagnose("concise");
    assert!(concise.contains("smallest: zprobe run --ga 1"), "{concise}");
}
