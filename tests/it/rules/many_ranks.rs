//! The diagnosis of runs in which a partition is shorter than the code, because there are many ranks:
//! partitions are decoded together.

use std::collections::BTreeSet;

use zprobe_diagnose::diagnose;
use zprobe_model::spec::{Dtype, Engine, Plan, SpecRequest};
use zprobe_model::trace::{Event, Payload, Point, Trace};
use zprobe_report::render::render;
use zprobe_report::{Form, Report, Verdict};

use crate::simulator::Simulation;

/// The number of ranks, at which partitions are shorter than the code.
const RANKS: usize = 256;

fn simulation(lost: &[(usize, usize, usize)]) -> Simulation {
    let fp32 = Some(Dtype::Fp32);
    let request = SpecRequest {
        engine: Some(Engine::DeepSpeed),
        world_size: Some(RANKS),
        dtype: fp32,
        grad_accum_dtype: fp32,
        comm_dtype: fp32,
        ..SpecRequest::default()
    };
    Simulation::large(request, lost)
}

/// Changes the optimizer input of some ranks in step 0, element by element of the flat order.
fn change_input(
    simulation: &Simulation,
    trace: &mut Trace,
    ranks: std::ops::Range<usize>,
    change: impl Fn(usize, usize, f64) -> f64,
) {
    let mut first = 0;
    for record in &mut trace.records {
        let Some(rank) = record.rank.filter(|rank| ranks.contains(rank)) else { continue };
        if let Event::Layout { segments, sampled: false, .. } = &record.event {
            // The last layout before the buffers is that of the partition.
            let segment = segments[0];
            let param = segment.param.map_or(0, |param| simulation.plan.params()[param].offset);
            first = param + segment.offset;
        }
        if let Event::Buffer { point: Point::OptimizerInput, step: Some(0), payload, .. } =
            &mut record.event
        {
            let values = payload.values().unwrap().into_iter().enumerate();
            let changed = values.map(|(at, value)| change(rank, first + at, value) as f32);
            let bytes: Vec<u8> = changed.flat_map(f32::to_le_bytes).collect();
            *payload = Payload::new(Dtype::Fp32, &bytes, payload.norm.unwrap_or(0.0));
        }
    }
}

/// The number of ranks whose partition is more than padding.
fn holders() -> usize {
    let numel = simulation(&[]).plan.numel();
    numel.div_ceil(numel.div_ceil(RANKS))
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn partitions_are_too_short_to_be_decoded_alone() {
    let simulation = simulation(&[]);
    let partition = simulation.plan.numel() / RANKS;
    assert!(partition < Plan::code(&simulation.spec).shortest() / 2, "{partition}");
}

#[test]
fn many_correct_ranks_are_clean_and_one_entry_each_moment() {
    let report = diagnose(&simulation(&[]).trace());
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
    let input: Vec<_> =
        report.contributions.iter().filter(|it| it.point == Point::OptimizerInput).collect();
    assert_eq!(input.len(), 2, "one a step");
    assert!(input.iter().all(|entry| entry.ranks().eq(0..holders())));
    assert_eq!(input[0].weights, vec![vec![1.0; 4]; RANKS]);
}

#[test]
fn a_gradient_that_reaches_none_of_many_ranks_is_named_with_its_rank_and_microbatch() {
    let report = diagnose(&simulation(&[(1, 173, 2)]).trace());
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.step), ("ZP102", Some(1)));
    assert_eq!(finding.microbatch, Some(2));
    assert!(finding.message.contains("microbatch 2 of rank 173"), "{}", finding.message);
}

#[test]
fn a_leak_on_every_one_of_many_ranks_is_one_finding_and_few_entries() {
    let simulation = simulation(&[]);
    let (spec, code) = (&simulation.spec, Plan::code(&simulation.spec));
    let boundary: Vec<f64> = {
        let mut weights = vec![0.0; spec.contributions()];
        for rank in 0..RANKS {
            weights[spec.column(0, rank, 3)] = 1.0;
        }
        code.encode(&weights, 0..simulation.plan.numel() + 1000)
    };
    let mut trace = simulation.trace();
    change_input(&simulation, &mut trace, 0..RANKS, |rank, element, value| {
        if element >= simulation.plan.numel() {
            return value;
        }
        let own = f64::from(code.value(spec.column(0, rank, 3), element));
        value - boundary[element] + RANKS as f64 * own
    });
    let report = diagnose(&trace);
    let leaks: Vec<_> = report.findings.iter().filter(|it| it.code == "ZP101").collect();
    assert_eq!(leaks.len(), 1, "{:#?}", report.findings);
    assert_eq!((leaks[0].step, leaks[0].microbatch), (Some(0), Some(3)));
    let leaked = |it: &&zprobe_report::Contribution| {
        it.point == Point::OptimizerInput && it.step == 0 && !it.as_planned
    };
    let entries: Vec<_> = report.contributions.iter().filter(leaked).collect();
    assert!(entries.len() < 16, "not one for each rank: {}", entries.len());
    let ranks: BTreeSet<usize> = entries.iter().flat_map(|entry| entry.ranks()).collect();
    assert!(ranks.into_iter().eq(0..holders()));
}

#[test]
fn one_wrong_bit_on_one_of_many_ranks_is_found_on_that_rank() {
    let simulation = simulation(&[]);
    let mut trace = simulation.trace();
    let first = simulation.plan.numel().div_ceil(RANKS) * 77;
    change_input(&simulation, &mut trace, 77..78, |_, element, value| {
        if element == first + 40 { value + 1.0 } else { value }
    });
    let report = diagnose(&trace);
    assert!(!report.findings.is_empty());
    assert_eq!(report.findings[0].rank, Some(77), "{:#?}", report.findings);
}

#[test]
fn the_terminal_report_of_many_ranks_is_short() {
    let report = diagnose(&simulation(&[(0, 173, 2)]).trace());
    let text = render(&report, Form::Full).unwrap();
    let text = anstream::adapter::strip_str(&text).to_string();
    assert!(text.lines().count() < 60, "{text}");
    assert!(text.contains("ranks 0-254"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn one_lost_gradient_of_512_and_of_2048_is_named_in_bf16() {
    for ga in [64, 256] {
        let bf16 = Some(Dtype::Bf16);
        let request = SpecRequest {
            engine: Some(Engine::DeepSpeed),
            world_size: Some(8),
            gradient_accumulation_steps: Some(ga),
            dtype: bf16,
            grad_accum_dtype: bf16,
            comm_dtype: bf16,
            ..SpecRequest::default()
        };
        let report = Simulation::large(request, &[(0, 5, 33)]).report();
        let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
        assert_eq!((finding.code.as_str(), finding.microbatch), ("ZP102", Some(33)));
        assert!(finding.message.contains("microbatch 33 of rank 5"), "{}", finding.message);
        let weights = finding.evidence.join(" ");
        assert!(weights.contains("all 1, but for rank 5: m33 0"), "{weights}");
    }
}
