//! Repeats of a run: the differences between them, and the findings about the differences.

use zprobe_diagnose::repeats::RepeatComparison;
use zprobe_model::spec::{Model, SpecRequest};
use zprobe_model::trace::{Event, Point, Trace};
use zprobe_report::{Report, Severity, Verdict};

use super::scenarios::{crash, edit, request};
use crate::simulator::{self, Cut, Simulation};

fn healthy() -> Trace {
    Simulation::new(request(), Cut::Flat).trace()
}

fn report(repeats: Vec<Trace>) -> Report {
    let mut repeats = repeats.into_iter();
    let mut seen = RepeatComparison::new(repeats.next().unwrap());
    repeats.for_each(|trace| seen.add(&trace));
    seen.report()
}

/// The trace of a healthy run in which one element of the optimizer input of rank 1 differs from step `from`
/// on.
fn disturbed(from: usize, element: usize) -> Trace {
    let mut trace = healthy();
    edit(&mut trace, 1, |event| {
        let Event::Buffer { step: Some(step), point: Point::OptimizerInput, payload, .. } = event
        else {
            return;
        };
        if *step >= from {
            let mut bytes = payload.bytes().unwrap();
            let value = payload.values().unwrap()[element] as f32 * 2.0 + 1.0;
            bytes[element * 4..][..4].copy_from_slice(&value.to_le_bytes());
            *payload = simulator::payload(payload.dtype, &bytes);
        }
    });
    trace
}

/// The report on five repeats, the fourth of which differs.
pub fn one_of_five_differs() -> Report {
    report(vec![healthy(), healthy(), healthy(), disturbed(1, 40), healthy()])
}

#[test]
fn repeats_that_are_equal_are_clean_and_the_report_says_how_many_they_were() {
    let report = report(vec![healthy(), healthy(), healthy()]);
    assert_eq!((report.verdict, report.findings.as_slice()), (Verdict::Clean, &[][..]));
    let repeats = report.repeats.unwrap();
    assert_eq!(repeats.verdicts, [Verdict::Clean; 3]);
    assert!(repeats.compared > 10 && repeats.differences.is_empty());
}

#[test]
fn a_difference_in_one_repeat_of_five_is_found_at_its_first_point() {
    let report = one_of_five_differs();
    assert_eq!(report.verdict, Verdict::Findings);
    let race = report.findings.iter().find(|finding| finding.code == "ZP905").unwrap();
    assert_eq!((race.step, race.rank), (Some(1), Some(1)));
    assert!(race.param.is_some(), "one parameter alone differs: {race:?}");
    assert_eq!(race.severity, Severity::Error);
    assert!(race.message.starts_with("1 of 5 repeats"), "{}", race.message);
    assert!(race.evidence.iter().any(|fact| fact.contains("repeat 3")), "{race:?}");
    assert!(race.evidence.iter().any(|fact| fact.contains("differ in 1 of ")), "{race:?}");
}

#[test]
fn repeats_that_differ_on_another_rank_at_the_same_point_count_too() {
    let on = |rank: usize| {
        let mut trace = healthy();
        edit(&mut trace, rank, |event| {
            if let Event::GradientNorm { norm: Some(norm), .. } = event {
                *norm += 1.0;
            }
        });
        trace
    };
    let report = report(vec![healthy(), on(1), on(0), healthy()]);
    let race = report.findings.iter().find(|finding| finding.code == "ZP905").unwrap();
    assert!(race.message.starts_with("2 of 4 repeats"), "{}", race.message);
    assert_eq!((race.step, race.rank), (Some(0), None));
    assert!(race.evidence.contains(&"unlike repeat 0: repeats 1 and 2".to_owned()), "{race:?}");
    assert!(race.evidence.iter().any(|fact| fact.ends_with("in repeat 2")), "{race:?}");
}

#[test]
fn what_differs_in_padding_alone_is_no_difference() {
    let last = healthy().events().find_map(|(rank, event)| match event {
        Event::Buffer { point: Point::OptimizerInput, payload, .. } if rank == Some(1) => {
            Some(payload.numel - 1)
        }
        _ => None,
    });
    let report = report(vec![healthy(), disturbed(0, last.unwrap())]);
    assert!(report.repeats.unwrap().differences.is_empty());
    assert!(report.findings.iter().all(|finding| finding.code != "ZP905"));
}

#[test]
fn what_only_one_repeat_shows_follows_from_the_race_and_names_the_repeat() {
    let report = one_of_five_differs();
    let [race] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!(race.code, "ZP905");
    let [other] = &race.consequences[..] else { panic!("{race:?}") };
    assert!(other.message.ends_with("(seen in 1 of 5 repeats: repeat 3)"), "{other:?}");
    assert_eq!(report.repeats.unwrap().shown, 3);
}

#[test]
fn what_all_repeats_show_is_no_consequence_of_a_race() {
    let lost = || {
        let mut simulation = Simulation::new(request(), Cut::Flat);
        simulation.weight = Box::new(|at, right| if at.source.2 == 1 { 0.0 } else { right });
        simulation.trace()
    };
    let mut late = lost();
    edit(&mut late, 1, |event| {
        if let Event::Loss { value: Some(value), .. } = event {
            *value += 1.0;
        }
        if let Event::GradientNorm { norm: Some(norm), .. } = event {
            *norm += 1.0;
        }
    });
    let report = report(vec![lost(), late, lost()]);
    let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
    assert_eq!(codes, ["ZP102", "ZP905"]);
}

#[test]
fn what_all_repeats_show_but_each_in_another_step_follows_from_the_race() {
    let lost_in = |step: usize| {
        let mut simulation = Simulation::new(request(), Cut::Flat);
        simulation.weight = Box::new(
            move |at, right| {
                if (at.step, at.source.2) == (step, 1) { 0.0 } else { right }
            },
        );
        simulation.trace()
    };
    let report = report(vec![lost_in(0), lost_in(1), lost_in(1)]);
    let [race] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!(race.code, "ZP905");
    let lost = race.consequences.iter().find(|it| it.code == "ZP102").unwrap();
    assert!(
        lost.message.ends_with("(seen in each of 3 repeats, but in different places)"),
        "{lost:?}"
    );
}

#[test]
fn a_repeat_that_crashes_is_a_crash_and_what_it_did_not_reach_is_no_difference() {
    let mut crashed = healthy();
    let in_step_1 = |event: &Event| matches!(event, Event::GraphWalked { step: 1, .. });
    crash(&mut crashed, 1, in_step_1, "RuntimeError: gone");
    let report = report(vec![healthy(), crashed, healthy()]);
    assert_eq!(report.verdict, Verdict::Crashed);
    let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
    assert_eq!(codes, ["ZP901"]);
    assert!(report.repeats.unwrap().differences.is_empty());
}

#[test]
fn bits_that_differ_with_a_dense_model_are_a_warning() {
    let dense = |loss: f64| {
        let mut trace = healthy();
        trace.spec.model = Model::Mlp;
        if let Some(record) = trace.records.first_mut()
            && let Event::RunStarted { spec, .. } = &mut record.event
        {
            spec.model = Model::Mlp;
        }
        let mut record = trace.records.iter().find(|it| it.rank == Some(0)).unwrap().clone();
        record.event = Event::Loss { step: 0, microbatch: 0, value: Some(loss) };
        trace.records.insert(1, record);
        trace
    };
    let report = report(vec![dense(1.0), dense(1.0 + f64::EPSILON)]);
    let race = report.findings.iter().find(|finding| finding.code == "ZP905").unwrap();
    assert_eq!((race.severity, race.step, race.microbatch), (Severity::Warning, Some(0), Some(0)));
    assert!(race.message.ends_with("first in the loss"), "{}", race.message);
}

#[test]
fn the_samples_of_a_step_are_the_same_however_its_batch_is_split() {
    let split = |ranks, ga, size| {
        let request = SpecRequest {
            world_size: Some(ranks),
            gradient_accumulation_steps: Some(ga),
            micro_batch_size: Some(size),
            model: Some(Model::Mlp),
            steps: Some(2),
            ..SpecRequest::default()
        };
        let spec = request.resolve().unwrap();
        let microbatches = (0..ranks).flat_map(|rank| (0..ga).map(move |m| (rank, m)));
        let mut samples: Vec<usize> =
            microbatches.flat_map(|(rank, m)| spec.samples(1, rank, m)).collect();
        samples.sort_unstable();
        samples
    };
    let whole: Vec<usize> = (64..128).collect();
    assert_eq!(
        [split(2, 16, 2), split(2, 4, 8), split(4, 1, 16)],
        [&whole, &whole, &whole].map(Clone::clone)
    );
}
