//! The diagnosis of a large model with recorded samples. The samples are whole windows of every piece,
//! including the first and the last element of the piece.

use std::collections::BTreeMap;

use zprobe_diagnose::diagnose;
use zprobe_model::spec::plan::Segment;
use zprobe_model::spec::{Dtype, Engine, Plan, SpecRequest};
use zprobe_model::trace::{Event, LayoutName, Payload, Point, Trace};
use zprobe_report::{Report, Verdict};

use crate::simulator::{Cut, Simulation};

const CUTS: [Cut; 3] = [Cut::Replicated, Cut::Flat, Cut::EachParameter];

fn simulation(cut: &Cut) -> Simulation {
    let request = SpecRequest {
        engine: Some(Engine::DeepSpeed),
        parameters: Some(3_000),
        ..SpecRequest::default()
    };
    Simulation::new(request, cut.clone())
}

/// The recorded segments, each with its place in the buffer.
type Windows = Vec<(usize, Segment)>;

/// The first and the last window of each piece.
fn windows(segments: &[Segment], length: usize) -> Windows {
    let mut start = 0;
    let mut windows = Vec::new();
    for segment in segments {
        let window = |first: usize, len: usize| {
            (start + first, Segment { offset: segment.offset + first, len, ..*segment })
        };
        match segment.param {
            None => {}
            Some(_) if segment.len <= 2 * length => windows.push(window(0, segment.len)),
            Some(_) => windows.extend([window(0, length), window(segment.len - length, length)]),
        }
        start += segment.len;
    }
    windows
}

/// The segments that a rank records of the whole model: windows of every part that some rank holds.
fn cut_everywhere(segments: &[Segment], partitions: &[Vec<Segment>]) -> Vec<Segment> {
    let ends = |param| {
        let held = partitions.iter().flatten().filter(move |held| held.param == param);
        held.flat_map(|held| [held.offset, held.offset + held.len])
    };
    let mut parts = Vec::new();
    for segment in segments {
        let end = segment.offset + segment.len;
        let mut cuts: Vec<usize> = ends(segment.param)
            .filter(|place| (segment.offset + 1..end).contains(place))
            .chain([segment.offset, end])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        parts.extend(cuts.windows(2).map(|pair| Segment {
            offset: pair[0],
            len: pair[1] - pair[0],
            ..*segment
        }));
    }
    parts
}

/// The trace with only samples in its buffers, as `sampler.py` takes them.
fn sampled(simulation: &Simulation) -> Trace {
    let mut trace = simulation.trace();
    let length = Plan::code(&simulation.spec).length();
    let partitions: Vec<Vec<Segment>> = trace
        .events()
        .filter_map(|(_, event)| match event {
            Event::Layout { layout: LayoutName::Partition, segments, .. } => Some(segments.clone()),
            _ => None,
        })
        .collect();
    let mut chosen: BTreeMap<(Option<usize>, LayoutName), Windows> = BTreeMap::new();
    let mut records = Vec::new();
    for mut record in trace.records.drain(..) {
        let mut announced = None;
        match &mut record.event {
            Event::Layout { layout, segments, .. } => {
                let pieces = match layout {
                    LayoutName::Full => cut_everywhere(segments, &partitions),
                    LayoutName::Partition => segments.clone(),
                };
                let windows = windows(&pieces, length);
                let segments = windows.iter().map(|(_, segment)| *segment).collect();
                chosen.insert((record.rank, *layout), windows);
                announced = Some(Event::Layout { layout: *layout, segments, sampled: true });
            }
            Event::Buffer { layout, payload, .. } => {
                let (bytes, size) = (payload.bytes().expect("a payload"), payload.dtype.size());
                let picked: Vec<u8> = chosen[&(record.rank, *layout)]
                    .iter()
                    .flat_map(|(start, segment)| &bytes[start * size..][..segment.len * size])
                    .copied()
                    .collect();
                *payload = Payload::new(payload.dtype, &picked, payload.norm.unwrap_or(f64::NAN));
            }
            _ => {}
        }
        let follower =
            announced.map(|event| zprobe_model::trace::Record { event, ..record.clone() });
        records.push(record);
        records.extend(follower);
    }
    trace.records = records;
    trace
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn samples_of_a_correct_engine_are_clean_and_the_report_says_how_little_they_are() {
    for cut in &CUTS {
        let report = diagnose(&sampled(&simulation(cut)));
        assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]), "{cut:?}");
        assert!(report.contributions.iter().all(|entry| entry.covered < 1.0), "{cut:?}");
        let missing = report.not_exercised.join("\n");
        assert!(missing.contains("% of all elements"), "{cut:?}: {missing}");
        assert!(report.power.statement.contains("that was looked at"), "{cut:?}");
    }
}

#[test]
fn a_slip_in_what_was_sampled_is_named() {
    for cut in &CUTS {
        let mut simulation = simulation(cut);
        simulation.weight = Box::new(|at, right| if at.source.2 == 1 { 0.0 } else { right });
        let report = diagnose(&sampled(&simulation));
        assert_eq!(codes(&report), ["ZP102"], "{cut:?}");
        assert_eq!(report.findings[0].microbatch, Some(1), "{cut:?}");
    }
}

#[test]
fn a_piece_that_nobody_holds_is_found_although_only_samples_are_recorded() {
    let mut trace = sampled(&simulation(&Cut::Flat));
    for record in trace.records.iter_mut().filter(|record| record.rank == Some(1)) {
        if let Event::Layout { layout: LayoutName::Partition, segments, .. } = &mut record.event
            && let Some(last) = segments.iter_mut().rfind(|segment| segment.param.is_some())
        {
            last.param = None;
        }
    }
    assert!(codes(&diagnose(&trace)).contains(&"ZP401"));
}

#[test]
fn a_rank_that_leaves_out_the_end_of_a_piece_is_no_clean_run() {
    let mut trace = sampled(&simulation(&Cut::Flat));
    for record in trace.records.iter_mut().filter(|record| record.rank == Some(0)) {
        if let Event::Layout { segments, sampled: true, .. } = &mut record.event {
            segments.pop();
        }
    }
    let report = diagnose(&trace);
    assert_eq!(report.verdict, Verdict::Inconclusive);
}

/// The report after a change of the norm of rank 1's buffers at a point, in step 0.
fn with_norm(point: Point, norm: Option<f64>) -> Report {
    let mut trace = sampled(&simulation(&Cut::Replicated));
    for record in trace.records.iter_mut().filter(|record| record.rank == Some(1)) {
        if let Event::Buffer { point: at, payload, step: Some(0), .. } = &mut record.event
            && *at == point
        {
            payload.norm = norm;
        }
    }
    diagnose(&trace)
}

#[test]
fn what_lies_between_the_samples_shows_in_the_norm() {
    assert_eq!(codes(&with_norm(Point::OptimizerInput, None)), ["ZP501"]);
    assert_eq!(codes(&with_norm(Point::Parameters, Some(1.5))), ["ZP601"]);
}

#[test]
fn a_master_weight_that_never_reached_the_model_is_found_among_the_samples() {
    let mut trace = sampled(&simulation(&Cut::Flat));
    for record in &mut trace.records {
        if let Event::Buffer { point: Point::Parameters, payload, step: Some(1), .. } =
            &mut record.event
        {
            let mut bytes = payload.bytes().expect("a payload");
            assert_eq!(payload.dtype, Dtype::Bf16);
            bytes[0] ^= 1;
            *payload = Payload::new(payload.dtype, &bytes, payload.norm.unwrap_or(f64::NAN));
        }
    }
    assert!(codes(&diagnose(&trace)).contains(&"ZP602"));
}
