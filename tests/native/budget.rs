//! Runs that exceed the budget of their trace: the recorded part still leads to the right verdict.

use std::collections::{BTreeMap, BTreeSet};

use bytesize::ByteSize;
use zprobe_diagnose::diagnose;
use zprobe_launch::{HostSource, Launch};
use zprobe_model::spec::{Dataflow, Point, RunSpec, SpecRequest};
use zprobe_model::trace::{TRACE_FILE, Trace};
use zprobe_report::Verdict;

use crate::faults::{cell, expected};
use crate::pool::pool;
use crate::support::full;

/// The largest size of a report, in bytes.
const LARGEST_REPORT: usize = 5_000_000;

/// Runs with small budgets; each run leaves out records of another kind.
fn tight() -> Vec<(&'static str, SpecRequest)> {
    let request = |budget| SpecRequest {
        dataflow: Some(Dataflow::IpgBucket),
        trace_budget: Some(ByteSize(budget)),
        ..SpecRequest::default()
    };
    vec![
        ("steps", SpecRequest { steps: Some(40), ..request(900_000) }),
        (
            "microbatches",
            SpecRequest { gradient_accumulation_steps: Some(40), ..request(1_500_000) },
        ),
        (
            "ranks",
            SpecRequest {
                world_size: Some(6),
                dataflow: Some(Dataflow::Accumulator),
                ..request(450_000)
            },
        ),
        ("elements", SpecRequest { parameters: Some(400_000), ..request(4_000_000) }),
    ]
}

/// The kinds of records that a run's trace leaves out.
fn left_out(spec: &RunSpec) -> Vec<&'static str> {
    let recording = &spec.recording;
    let kinds = [
        ("steps", recording.steps.is_some()),
        ("microbatches", recording.microbatches.is_some()),
        ("ranks", recording.ranks.is_some()),
        ("elements", recording.sampled),
    ];
    kinds.into_iter().filter(|(_, is_left_out)| *is_left_out).map(|(kind, _)| kind).collect()
}

#[test]
fn a_run_within_its_budget_is_as_clean_as_a_whole_one_and_says_what_it_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    for (kind, request) in tight() {
        let spec = request.resolve().unwrap();
        assert!(left_out(&spec).contains(&kind), "{kind}: {:?}", spec.recording);
        let dir = tempfile::tempdir().unwrap();
        let source = HostSource::Warm(&pool);
        let launch = Launch { run_id: kind, spec: &spec, source, run_dir: dir.path() };
        let _ended = launch.run(&mut |_| {}).unwrap();
        let bytes = std::fs::metadata(dir.path().join(TRACE_FILE)).unwrap().len();
        assert!(bytes <= spec.recording.budget, "{kind}: {bytes}");
        let report = diagnose(&Trace::read(dir.path()).unwrap());
        assert_eq!(report.verdict, Verdict::Clean, "{kind}: {:#?}", report.findings);
        assert!(serde_json::to_string_pretty(&report).unwrap().len() <= LARGEST_REPORT, "{kind}");
        let said = report.not_exercised.join("\n").contains("--trace-budget");
        assert!(said || kind == "elements", "{kind}: {:?}", report.not_exercised);
        for point in [Point::OptimizerInput, Point::MasterWeights] {
            let of_point = report.contributions.iter().filter(|entry| entry.point == point);
            let read: BTreeSet<usize> = of_point.map(|entry| entry.step).collect();
            assert_eq!(Vec::from_iter(read), Vec::from_iter(spec.recorded_steps()), "{kind}");
        }
    }
}

#[test]
fn every_fault_is_named_in_what_a_budget_leaves_too() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let (mut wrong, mut tried, mut named, mut clean) = (String::new(), 0, 0, BTreeMap::new());
    // The tests of large models cover samples of elements.
    let kinds: Vec<_> = tight().into_iter().filter(|(kind, _)| *kind != "elements").collect();
    // In an everyday test each fault is tried with one kind, in turn.
    let count = if full() { kinds.len() } else { 1 };
    for (at, row) in expected().into_iter().enumerate() {
        for (kind, request) in kinds.iter().cycle().skip(at % kinds.len()).take(count) {
            let (text, problem) = cell(&pool, &mut clean, &row, request);
            tried += 1;
            named += usize::from(text.starts_with("ZP"));
            if let Some(problem) = problem {
                wrong += &format!("{} with few {kind}: {text}: {problem}\n", row.fault);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(3 * named > 2 * tried, "{named} of {tried}");
}
