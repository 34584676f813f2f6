//! Tests of infinities, overflows, norms and clipping on simulated engines.

use proptest::prelude::*;
use zprobe_diagnose::diagnose;
use zprobe_model::spec::plan::{Param, Segment};
use zprobe_model::spec::{Dtype, Optimizer, Shape, SpecRequest};
use zprobe_model::trace::{
    Differing, Event, FlushReason, LayoutName, Payload, Point, Record, StateCompared, Trace,
};
use zprobe_report::{Report, Verdict};

use super::scenarios::{
    crash, differing, edit, fp16, loss_scale_grows_after_one_step, orthogonalised, recorded,
    request, resumed, scenarios,
};
use crate::simulator::{self, Cut, LOSS_SCALE, Simulation};

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.code.as_str()).collect()
}

fn infinite(request: SpecRequest) -> SpecRequest {
    SpecRequest { shapes: vec![Shape::InfinityOnOneRank], ..request }
}

const CUTS: [Cut; 3] = [Cut::Replicated, Cut::Flat, Cut::EachParameter];

/// Sets one element of every rank's buffer at a point, in step 0, to NaN.
fn spoil(trace: &mut Trace, point: Point, element: usize) {
    for rank in 0..2 {
        edit(trace, rank, |event| {
            if let Event::Buffer { point: at, step: Some(0), payload, .. } = event
                && *at == point
            {
                let mut bytes = payload.bytes().unwrap();
                bytes[4 * element..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
                *payload = Payload::new(payload.dtype, &bytes, f64::NAN);
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn an_engine_that_clips_as_it_should_is_clean(
        world in 1usize..=4, ga in 1usize..=4, cut in prop::sample::select(CUTS.to_vec()),
        limit in 0.01f64..100.0,
    ) {
        let asked = SpecRequest {
            world_size: Some(world),
            gradient_accumulation_steps: Some(ga),
            gradient_clipping: Some(limit),
            shapes: vec![Shape::UnusedAlternating, Shape::Frozen],
            ..request()
        };
        let report = Simulation::new(asked, cut).report();
        prop_assert_eq!(report.verdict, Verdict::Clean, "{:#?}", report.findings);
    }
}

#[test]
fn an_infinity_that_stays_where_it_belongs_is_no_finding() {
    for cut in CUTS {
        for clipping in [None, Some(0.5)] {
            let asked = SpecRequest { gradient_clipping: clipping, ..infinite(request()) };
            let report = Simulation::new(asked, cut.clone()).report();
            let seen = (report.verdict, codes(&report));
            assert_eq!(seen, (Verdict::Clean, vec![]), "{cut:?}, {clipping:?}: {report:#?}");
        }
    }
}

#[test]
fn another_element_that_is_not_finite_is_a_finding_beside_the_infinity() {
    let mut trace = Simulation::new(infinite(request()), Cut::Flat).trace();
    spoil(&mut trace, Point::OptimizerInput, 3);
    let report = diagnose(&trace);
    assert_eq!(codes(&report), ["ZP501"]);
    assert_eq!(report.findings[0].step, Some(0));
}

#[test]
fn in_fp16_all_ranks_skip_an_infinite_step_and_the_next_is_exact() {
    for cut in CUTS {
        let report = Simulation::new(infinite(fp16()), cut).report();
        assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
        let skipped = |text: &String| text.starts_with("step 0");
        assert!(report.not_exercised.iter().any(skipped), "{:?}", report.not_exercised);
    }
}

#[test]
fn in_fp16_a_step_with_an_infinity_is_a_finding() {
    let mut simulation = Simulation::new(infinite(fp16()), Cut::Flat);
    simulation.overflow = Box::new(|_, _, _| false);
    assert_eq!(codes(&simulation.report()), ["ZP501"]);
}

#[test]
fn ranks_that_decide_differently_are_found_even_if_one_died_before_it_said_so() {
    let (_, trace) =
        scenarios().into_iter().find(|(name, _)| name.contains("overflow-seen")).unwrap();
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Crashed, vec!["ZP502"]));

    let mut trace = trace;
    let silent = |event: &Event| matches!(event, Event::LossScaled { step: 0, .. });
    for rank in 0..2 {
        crash(&mut trace, rank, silent, "RuntimeError: size mismatch");
    }
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Crashed, vec!["ZP502"]));
    assert_eq!(report.findings[0].step, Some(0));
}

#[test]
fn an_overflow_that_the_loss_scale_explains_is_not_exercised_and_no_finding() {
    let mut simulation = Simulation::new(fp16(), Cut::Flat);
    simulation.overflow = Box::new(|step, _, overflow| overflow || step == 0);
    let mut trace = simulation.trace();
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::LossScaled { scale, .. } = event {
                *scale = 65536.0;
            }
        });
    }
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
    assert!(report.not_exercised.iter().any(|text| text.contains("loss scale 65536")));
}

#[test]
fn a_loss_scale_that_grows_too_early_is_a_finding_unless_the_ranks_differ() {
    let report = diagnose(&loss_scale_grows_after_one_step(&[0, 1]));
    assert_eq!(codes(&report), ["ZP505"]);
    assert_eq!(report.findings[0].step, Some(1));
    assert_eq!(codes(&diagnose(&loss_scale_grows_after_one_step(&[1]))), ["ZP502"]);
}

#[test]
fn a_run_that_skipped_every_step_is_not_clean() {
    let asked = SpecRequest { steps: Some(1), ..infinite(fp16()) };
    let report = Simulation::new(asked, Cut::Flat).report();
    assert_eq!(report.verdict, Verdict::Inconclusive);
}

#[test]
fn a_norm_that_is_off_or_not_the_same_everywhere_is_found() {
    for (rank, factor) in [(1, 2f64.sqrt()), (0, 1.05)] {
        let asked = SpecRequest { dtype: Some(Dtype::Fp32), ..request() };
        let mut trace = Simulation::new(asked, Cut::Flat).trace();
        edit(&mut trace, rank, |event| {
            if let Event::GradientNorm { norm: Some(norm), .. } = event {
                *norm *= factor;
            }
        });
        let report = diagnose(&trace);
        assert_eq!(codes(&report), ["ZP604"]);
        let finding = &report.findings[0];
        assert!(finding.evidence.iter().any(|fact| *fact == format!("seen on rank {rank}")));
    }
}

#[test]
fn a_wrong_norm_by_which_the_gradient_was_clipped_is_the_only_finding() {
    let asked = SpecRequest { gradient_clipping: Some(0.5), ..request() };
    let mut trace = Simulation::new(asked, Cut::Flat).trace();
    let doubled = |event: &mut Event| {
        if let Event::GradientNorm { norm: Some(norm), .. } = event {
            *norm *= 2.0;
        }
    };
    for rank in 0..2 {
        edit(&mut trace, rank, doubled);
    }
    // The norm is twice too large, so the optimizer gets half of the correct gradient.
    for rank in 0..2 {
        scale_optimizer_input(&mut trace, rank, 0.5);
    }
    assert!(codes(&diagnose(&trace)).contains(&"ZP604"));
    assert!(!codes(&diagnose(&trace)).contains(&"ZP105"));
}

#[test]
fn a_gradient_that_one_rank_did_not_clip_is_told_from_one_of_another_scale() {
    let asked = SpecRequest { gradient_clipping: Some(0.5), steps: Some(1), ..request() };
    let mut trace = Simulation::new(asked, Cut::Flat).trace();
    let mut norm = 0.0;
    edit(&mut trace, 1, |event| {
        if let Event::GradientNorm { norm: Some(computed), .. } = event {
            norm = *computed;
        }
    });
    scale_optimizer_input(&mut trace, 1, norm / 0.5);
    let report = diagnose(&trace);
    assert_eq!(codes(&report), ["ZP105"]);
    let message = &report.findings[0].message;
    let said = format!("not clipped to 0.5, though the norm is {norm:.3}");
    assert!(message.contains(&said), "{message}");
}

/// Multiplies all gradients that the optimizer of a rank consumes by a factor.
fn scale_optimizer_input(trace: &mut Trace, rank: usize, factor: f64) {
    edit(trace, rank, |event| {
        if let Event::Buffer { point: Point::OptimizerInput, payload, .. } = event {
            let scaled: Vec<u8> = payload
                .values()
                .unwrap()
                .into_iter()
                .flat_map(|value| ((value * factor) as f32).to_le_bytes())
                .collect();
            *payload = simulator::payload(payload.dtype, &scaled);
        }
    });
}

#[test]
fn a_norm_of_the_scaled_gradient_is_the_only_finding_where_clipping_went_by_the_right_one() {
    let asked = SpecRequest { gradient_clipping: Some(0.5), ..fp16() };
    let mut trace = Simulation::new(asked, Cut::Flat).trace();
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::GradientNorm { norm: Some(norm), .. } = event {
                *norm *= LOSS_SCALE;
            }
        });
    }
    assert_eq!(codes(&diagnose(&trace)), ["ZP604"]);
}

#[test]
fn a_rank_that_died_early_issued_no_other_collectives() {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    let second = |event: &Event| matches!(event, Event::CollectiveEntered { sequence: 1, .. });
    crash(&mut trace, 1, second, "RuntimeError: out of luck (engine.py:1, in step)");
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Crashed, vec!["ZP901"]));
    let finding = &report.findings[0];
    assert_eq!(finding.message, "RuntimeError (engine.py:1, in step)");
    assert_eq!((finding.step, finding.microbatch, finding.rank), (Some(1), Some(3), Some(1)));
}

#[test]
fn a_failure_of_the_environment_is_not_called_one_of_gradients() {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    let message = "RuntimeError: Output 0 of SplitBackward0 is a view and is being modified \
                   inplace (deepspeed/runtime/zero/stage_1_and_2.py:2061, in step)";
    let stepping = |event: &Event| matches!(event, Event::CollectiveEntered { .. });
    for rank in 0..2 {
        crash(&mut trace, rank, stepping, message);
    }
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Crashed, vec!["ZP901"]));
    let message = &report.findings[0].message;
    assert!(message.contains("cannot run this configuration here"), "{message}");
    let limit = report.limit().unwrap();
    assert!(limit.contains("cannot step on CPU ranks"), "{limit}");
}

#[test]
fn a_step_before_the_boundary_is_the_root_of_what_is_lost_and_left_over() {
    let mut simulation = Simulation::new(SpecRequest { steps: Some(2), ..request() }, Cut::Flat);
    simulation.weight = Box::new(|at, right| match (at.source.0 == at.step, at.source.2) {
        (true, 0) => right,
        (true, _) => 0.0,
        (false, m) => f64::from(u8::from(m > 0 && at.step == 1)),
    });
    let mut trace = simulation.trace();
    let boundary = simulation.spec.gradient_accumulation_steps - 1;
    let place = trace.records.iter().position(|record| record.rank == Some(1)).unwrap();
    let some = trace.records[place].clone();
    let mut called = |microbatches: Vec<usize>| {
        trace.records.retain(|it| !matches!(it.event, Event::OptimizerCalled { .. }));
        for step in 0..2 {
            let event = Event::OptimizerCalled { step, microbatches: microbatches.clone() };
            trace.records.insert(place + 1, Record { event, ..some.clone() });
        }
        diagnose(&trace)
    };
    let report = called(vec![0]);
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.step), ("ZP110", Some(0)));
    assert!(finding.message.contains("stepped after microbatch 0 of step 0"), "{finding:#?}");
    assert!(finding.consequences.iter().any(|it| it.code == "ZP102"), "{finding:#?}");

    assert!(!codes(&called(vec![boundary])).contains(&"ZP110"));
    let report = called(vec![]);
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert!(finding.message.contains("took no step after microbatch"), "{finding:#?}");
}

#[test]
fn parameters_that_a_pass_uses_are_those_that_the_step_before_left() {
    let simulation =
        Simulation::new(SpecRequest { steps: Some(2), ..request() }, Cut::EachParameter);
    let name = simulation.plan.params()[1].name.clone();
    let mut trace = simulation.trace();
    let place = trace.records.iter().position(|record| record.rank == Some(1)).unwrap();
    let some = trace.records[place].clone();
    let mut used = |differing: Vec<Differing>| {
        trace.records.retain(|it| !matches!(it.event, Event::ForwardUsed { .. }));
        for (microbatch, differing) in [(0, Vec::new()), (1, differing)] {
            let event = Event::ForwardUsed { step: 1, microbatch, differing };
            trace.records.insert(place + 1, Record { event, ..some.clone() });
        }
        diagnose(&trace)
    };
    let report = used(vec![Differing { param: 1, elements: 7, first: 3 }]);
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.step, finding.rank), ("ZP602", Some(1), Some(1)));
    assert!(finding.message.contains("step 1, microbatch 1, on rank 1"), "{finding:#?}");
    assert_eq!(finding.evidence, [format!("rank 1: {name} from element 3 on (7 elements)")]);
    assert_eq!(used(Vec::new()).verdict, Verdict::Clean);

    let differing = vec![Differing { param: 1, elements: 7, first: 3 }];
    let event = Event::BackwardUsed { step: 0, microbatch: 1, differing };
    trace.records.insert(place + 1, Record { event, ..some });
    let report = diagnose(&trace);
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.step, finding.rank), ("ZP602", Some(0), Some(1)));
    assert!(finding.message.starts_with("the backward of step 0, microbatch 1, on rank 1"));
}

#[test]
fn a_checkpoint_that_loses_state_is_named_with_ranks_and_parameters() {
    let equal = |state: &str| StateCompared {
        state: state.to_owned(),
        differing: Vec::new(),
        rounded: false,
        numbers: None,
    };
    let report = diagnose(&resumed(|_| vec![equal("parameters"), equal("optimizer.exp_avg")]));
    assert_eq!(report.verdict, Verdict::Clean, "{:#?}", report.findings);

    let of_one_rank = diagnose(&resumed(|rank| match rank {
        0 => vec![equal("optimizer.step")],
        _ => vec![differing("optimizer.step", &[1, 2], 3.0, 0.0)],
    }));
    let [finding] = &of_one_rank.findings[..] else { panic!("{:#?}", of_one_rank.findings) };
    let (step, rank) = (finding.step, finding.rank);
    assert_eq!((finding.code.as_str(), step, rank), ("ZP611", Some(1), Some(1)));
    assert!(finding.message.ends_with("on rank 1: optimizer.step"), "{finding:#?}");
    let [evidence] = &finding.evidence[..] else { panic!("{finding:#?}") };
    assert!(evidence.ends_with(": saved 3, loaded 0"), "{finding:#?}");

    let scale = diagnose(&resumed(|_| vec![differing("loss scale", &[], 64.0, 65536.0)]));
    let [finding] = &scale.findings[..] else { panic!("{:#?}", scale.findings) };
    assert_eq!((finding.rank, &finding.param), (None, &None));
    assert_eq!(finding.evidence, ["loss scale on ranks 0 and 1: saved 64, loaded 65536"]);
}

#[test]
fn a_bucket_is_what_it_says_it_is() {
    let simulation = Simulation::new(request(), Cut::EachParameter);
    let sizes: Vec<usize> = simulation.plan.params().iter().map(Param::numel).collect();
    let (both, many) = (sizes[0] + sizes[1], sizes.len());
    let mut trace = simulation.trace();
    let place = trace.records.iter().position(|record| record.rank == Some(1)).unwrap();
    let some = trace.records[place].clone();
    let mut flushed = |flushes: &[(usize, usize, Vec<usize>)]| {
        trace.records.retain(|it| !matches!(it.event, Event::BucketFlushed { .. }));
        for (flush, (elements, capacity, params)) in flushes.iter().cloned().enumerate() {
            let (step, microbatch, reason) = (0, 0, FlushReason::Full);
            let event = Event::BucketFlushed {
                step,
                microbatch,
                flush,
                reason,
                elements,
                capacity,
                params,
            };
            trace.records.insert(place + 1 + flush, Record { event, ..some.clone() });
        }
        let report = diagnose(&trace);
        report.findings.iter().map(|it| format!("{} {}", it.code, it.message)).collect::<Vec<_>>()
    };
    let alone: Vec<_> = (0..many).map(|param| (sizes[param], 1 << 20, vec![param])).collect();
    assert!(many > 5);
    for (flushes, message) in [
        (vec![(both, both - 1, vec![0, 1])], "held more elements than its capacity"),
        (vec![(both + 1, 1 << 20, vec![0, 1])], "counts a different number of elements"),
        (vec![(both, 1 << 20, vec![])], "elements of no parameter"),
        (alone.clone(), "times in a backward whose gradients fill only 1"),
    ] {
        let found = flushed(&flushes);
        let [finding] = &found[..] else { panic!("{found:#?}") };
        assert!(finding.starts_with("ZP302") && finding.contains(message), "{finding}");
    }
    let narrow =
        |(elements, _, params): &(usize, usize, Vec<usize>)| (*elements, 1, params.clone());
    for right in [
        vec![(both, both, vec![0, 1])],
        vec![(sizes[0], 1, vec![0])],
        alone.iter().map(narrow).collect(),
    ] {
        assert_eq!(flushed(&right), Vec::<String>::new());
    }
}

/// The report on a run in which each rank flushes a bucket with these parameters. With `nonsense`, the
/// optimizers consume values that no weights explain.
fn with_buckets(orders: [[usize; 3]; 2], nonsense: bool) -> Report {
    let mut simulation = Simulation::new(request(), Cut::EachParameter);
    if nonsense {
        simulation.weight = Box::new(|at, right| match (at.step, at.source) {
            (0, (0, 0, 0)) => 5.0 * right,
            (0, _) => -right,
            _ => right,
        });
    }
    let mut trace = simulation.trace();
    for (rank, params) in orders.iter().enumerate() {
        let place = trace.records.iter().position(|record| record.rank == Some(rank)).unwrap();
        let elements = params.iter().map(|&param| simulation.plan.params()[param].numel()).sum();
        let event = Event::BucketFlushed {
            step: 0,
            microbatch: 0,
            flush: 0,
            reason: FlushReason::Boundary,
            elements,
            capacity: 1 << 20,
            params: params.to_vec(),
        };
        let record = Record { event, ..trace.records[place].clone() };
        trace.records.insert(place + 1, record);
    }
    diagnose(&trace)
}

#[test]
fn buckets_of_other_parameters_are_the_reason_where_no_weights_explain_a_gradient() {
    let report = with_buckets([[0, 1, 2], [2, 1, 0]], true);
    let [finding] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.step, finding.bucket), ("ZP802", Some(0), Some(0)));
    assert_eq!(finding.consequences[0].code, "ZP107");
    let alike = with_buckets([[2, 1, 0], [2, 1, 0]], true);
    assert!(alike.findings.iter().all(|it| it.code == "ZP107"), "{:#?}", alike.findings);
    // Engines that sort the parameters of a bucket are not affected by the order.
    assert_eq!(with_buckets([[0, 1, 2], [2, 1, 0]], false).verdict, Verdict::Clean);
}

/// A trace in which the last `short` elements of rank 1 were not recognised.
fn unread_tail(short: usize) -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    edit(&mut trace, 1, |event| {
        if let Event::Layout { layout: LayoutName::Partition, segments, .. } = event {
            let last = segments.iter_mut().rfind(|segment| segment.param.is_some()).unwrap();
            let unread = Segment { unread: true, ..Segment::new(None, 0, short) };
            last.len -= short;
            segments.push(unread);
        }
    });
    trace
}

#[test]
fn elements_that_were_not_recognised_are_not_lost() {
    let report = diagnose(&unread_tail(12));
    assert!(!codes(&report).contains(&"ZP401"), "{:#?}", report.findings);
    let said = |text: &String| text.starts_with("12 elements of ") && text.contains("not seen");
    assert!(report.not_exercised.iter().any(said), "{:#?}", report.not_exercised);
}

#[test]
fn gradients_that_are_orthogonalised_once_a_step_are_no_finding() {
    let last = request().resolve().unwrap().gradient_accumulation_steps - 1;
    let report = diagnose(&orthogonalised(|microbatch| microbatch == last));
    assert_eq!((report.verdict, codes(&report)), (Verdict::Inconclusive, vec![]));
    assert_eq!(codes(&diagnose(&orthogonalised(|_| true))), ["ZP114"]);
}

#[test]
fn muon_that_never_orthogonalises_is_a_finding() {
    let muon = |is_transformed: fn(usize) -> bool| {
        let mut trace = orthogonalised(is_transformed);
        let last = request().resolve().unwrap().gradient_accumulation_steps - 1;
        let place = trace.records.iter().position(|record| record.rank == Some(1)).unwrap();
        let event = Event::OptimizerCalled { step: 0, microbatches: vec![last] };
        let record = Record { event, ..trace.records[place].clone() };
        trace.records.insert(place + 1, record);
        trace.spec.optimizer = Optimizer::Muon;
        codes(&diagnose(&trace)).join(" ")
    };
    assert_eq!(muon(|_| false), "ZP114");
    assert_eq!(muon(|microbatch| microbatch == 3), "");
}

#[test]
fn a_norm_that_is_not_the_norm_of_the_recorded_elements_is_reported() {
    let broken = |name: &str, factor: f64| {
        let mut trace = recorded(name);
        let payloads = trace.records.iter_mut().filter_map(|record| match &mut record.event {
            Event::Buffer { payload, .. } => Some(payload),
            _ => None,
        });
        let payload = payloads.filter(|it| it.has_content() && it.norm > Some(0.0)).last().unwrap();
        payload.norm = payload.norm.map(|norm| norm * factor);
        codes(&diagnose(&trace)).contains(&"ZP904")
    };
    assert!(broken("clean-ipg-bucket", 1e30) && broken("clean-ipg-bucket", 0.99), "a whole buffer");
    assert!(broken("script-clean", 0.99) && !broken("script-clean", 1e30), "samples");
    assert!(!broken("clean-ipg-bucket", 1.0) && !broken("script-clean", 1.0));
}

/// Puts values into an fp32 buffer.
fn set(payload: &mut Payload, values: &[f64]) {
    let bytes: Vec<u8> = values.iter().flat_map(|it| (*it as f32).to_le_bytes()).collect();
    *payload = simulator::payload(Dtype::Fp32, &bytes);
}

#[test]
fn a_gradient_that_is_zero_in_all_samples_is_not_called_lost() {
    let mut trace = recorded("script-observed");
    for step in 1..4 {
        let mut lost = Vec::new();
        edit(&mut trace, 1, |event| {
            if let Event::Buffer {
                point: Point::LocalGradient,
                step: Some(at),
                microbatch: Some(0),
                payload,
                ..
            } = event
                && *at == step
            {
                lost = payload.values().unwrap();
                set(payload, &vec![0.0; lost.len()]);
            }
        });
        assert!(!lost.is_empty());
        // Both points have the same samples, and the average over two ranks is the expected value.
        for rank in 0..2 {
            edit(&mut trace, rank, |event| {
                if let Event::Buffer {
                    point: Point::BeforeStep | Point::OptimizerInput,
                    step: Some(at),
                    payload,
                    ..
                } = event
                    && *at == step
                {
                    let held = payload.values().unwrap().into_iter();
                    let rest: Vec<f64> =
                        held.zip(&lost).map(|(held, lost)| held - lost / 2.0).collect();
                    set(payload, &rest);
                }
            });
        }
    }
    let report = diagnose(&trace);
    assert_eq!((report.verdict, codes(&report)), (Verdict::Clean, vec![]));
}
