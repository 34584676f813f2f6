//! The native engine over a pool: libtorch is loaded once, and every run equals a cold one.

use std::collections::BTreeMap;

use zprobe_launch::HostSource;
use zprobe_model::spec::{Dataflow, Fault, Model, SpecRequest};
use zprobe_model::trace::{Event, Trace};

use crate::pool::{codes, pool, program, run};

/// The events of each rank, with every buffer, but without the times of steps.
fn said(trace: &Trace) -> BTreeMap<usize, Vec<&Event>> {
    let mut said = BTreeMap::<_, Vec<_>>::new();
    for (sender, event) in trace.events() {
        if let (Some(rank), false) = (sender, matches!(event, Event::StepTimed { .. })) {
            said.entry(rank).or_default().push(event);
        }
    }
    said
}

#[test]
fn a_run_over_a_pool_says_what_a_cold_one_says_to_the_last_bit() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let ranks = |world_size| SpecRequest { world_size: Some(world_size), ..SpecRequest::default() };
    for request in [
        ranks(1),
        ranks(2),
        SpecRequest { dataflow: Some(Dataflow::IpgBucket), ..ranks(3) },
        SpecRequest { model: Some(Model::Mlp), ..ranks(2) },
        SpecRequest { inject: Some(Fault::BoundaryLeak), ..ranks(2) },
    ] {
        let spec = request.resolve().unwrap();
        let cold = run(HostSource::Cold(&program()), &spec);
        let warm = run(HostSource::Warm(&pool), &spec);
        assert_eq!(said(&warm), said(&cold), "{spec:?}");
    }
}

#[test]
fn a_rank_that_dies_hangs_or_babbles_harms_no_other_run() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    for (inject, expected) in [
        (Fault::RankDies, "ZP901"),
        (Fault::RankHangs, "ZP902"),
        (Fault::RankRubbish, "ZP903"),
        (Fault::CollectiveSkipped, "ZP801"),
    ] {
        // Only a hang is found by a timeout.
        let timeout_s = Some(if inject == Fault::RankHangs { 2 } else { 60 });
        let request = SpecRequest { timeout_s, ..SpecRequest::default() };
        let faulty = SpecRequest { inject: Some(inject), ..request.clone() };
        let faulty = run(HostSource::Warm(&pool), &faulty.resolve().unwrap());
        assert_eq!(codes(&faulty), [expected]);
        let request = SpecRequest { timeout_s: Some(60), ..request };
        let clean = run(HostSource::Warm(&pool), &request.resolve().unwrap());
        assert_eq!(codes(&clean), Vec::<String>::new(), "after {expected}");
    }
}

#[test]
fn fifty_runs_over_one_pool_are_clean() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    for seed in 0..50 {
        let request = SpecRequest { seed: Some(seed), ..SpecRequest::default() };
        let trace = run(HostSource::Warm(&pool), &request.resolve().unwrap());
        assert_eq!(codes(&trace), Vec::<String>::new(), "seed {seed}");
    }
}
