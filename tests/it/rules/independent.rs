//! Two bugs in one run: each is named with its own consequences and without those of the other bug.

use zprobe_diagnose::diagnose;
use zprobe_model::spec::SpecRequest;
use zprobe_model::trace::{Event, Payload, Point, Trace};
use zprobe_report::{Finding, Report, Verdict};

use super::scenarios::{edit, request};
use crate::simulator::{Cut, Place, Simulation};

/// A gradient of one parameter that is lost in one step.
#[derive(Clone, Copy)]
struct Lost {
    step: usize,
    rank: usize,
    microbatch: usize,
    /// The index of the parameter in the flat order.
    param: usize,
    /// True if the parameter's hook does not fire for the lost gradient.
    silent: bool,
}

const FIRST: Lost = Lost { step: 0, rank: 0, microbatch: 1, param: 0, silent: true };
const SECOND: Lost = Lost { step: 1, rank: 1, microbatch: 2, param: 3, silent: true };

impl Lost {
    fn name(self, simulation: &Simulation) -> String {
        simulation.plan.params()[self.param].name.clone()
    }

    fn is(self, name: &str, place: &Place<'_>) -> bool {
        place.param == name
            && place.step == self.step
            && place.source == (self.step, self.rank, self.microbatch)
    }
}

/// The names of the lost gradients' parameters, and the trace of a run without these gradients.
fn without(lost: [Lost; 2]) -> ([String; 2], Trace) {
    let mut simulation = Simulation::new(request(), Cut::EachParameter);
    let names = lost.map(|it| it.name(&simulation));
    let gone = names.clone();
    simulation.weight = Box::new(move |place, right| {
        let is_lost = lost.iter().zip(&gone).any(|(lost, name)| lost.is(name, &place));
        if is_lost { 0.0 } else { right }
    });
    let mut trace = simulation.trace();
    for Lost { step, rank, microbatch, param, .. } in lost.into_iter().filter(|it| it.silent) {
        edit(&mut trace, rank, |event| {
            if let Event::HooksFired { step: at, microbatch: m, fired, .. } = event
                && (*at, *m) == (step, microbatch)
            {
                fired[param] = 0;
            }
        });
    }
    (names, trace)
}

fn consequences(finding: &Finding) -> Vec<(&str, &str)> {
    finding.consequences.iter().map(|it| (it.code.as_str(), it.message.as_str())).collect()
}

/// The code, step, rank, microbatch and parameter of a finding.
type Named<'a> = (&'a str, Option<usize>, Option<usize>, Option<usize>, Option<&'a str>);

fn places(report: &Report) -> Vec<Named<'_>> {
    let place = |it: &'_ Finding| (it.step, it.rank, it.microbatch);
    let findings = report.findings.iter().map(|it| (it, place(it)));
    findings
        .map(|(it, (step, rank, microbatch))| {
            (it.code.as_str(), step, rank, microbatch, it.param.as_deref())
        })
        .collect()
}

#[test]
fn two_silent_hooks_each_have_the_gradient_that_they_lost() {
    let ([a, b], trace) = without([FIRST, SECOND]);
    let report = diagnose(&trace);
    let expected = [
        ("ZP201", Some(0), Some(0), Some(1), Some(a.as_str())),
        ("ZP201", Some(1), Some(1), Some(2), Some(b.as_str())),
    ];
    assert_eq!(places(&report), expected);
    for (finding, (rank, microbatch, step)) in report.findings.iter().zip([(0, 1, 0), (1, 2, 1)]) {
        let lost = format!(
            "the gradient of microbatch {microbatch} of rank {rank} never reached the optimizer"
        );
        let [missing, others @ ..] = &consequences(finding)[..] else { panic!("{finding:#?}") };
        assert_eq!(*missing, ("ZP102", lost.as_str()));
        assert!(others.iter().all(|(code, _)| *code == "ZP604"), "{others:?}");
        assert!(others.iter().all(|(_, it)| it.contains(&format!("step {step},"))), "{others:?}");
    }
}

#[test]
fn a_gradient_that_no_hook_lost_is_no_consequence_of_one_that_did() {
    for lost in
        [[FIRST, Lost { silent: false, ..SECOND }], [SECOND, Lost { silent: false, ..FIRST }]]
    {
        let ([a, b], trace) = without(lost);
        let report = diagnose(&trace);
        let [hook, missing] = lost.map(|it| (Some(it.step), Some(it.rank), Some(it.microbatch)));
        let expected = [
            ("ZP102", missing.0, missing.1, missing.2, Some(b.as_str())),
            ("ZP201", hook.0, hook.1, hook.2, Some(a.as_str())),
        ];
        let mut seen = places(&report);
        // The rank whose optimizer holds the parameter does not matter in this comparison.
        seen[0].2 = missing.1;
        assert_eq!(seen, expected, "{:#?}", report.findings);
        let under = |number: usize| consequences(&report.findings[number]);
        assert!(under(0).iter().all(|(code, _)| *code == "ZP604"), "{:?}", under(0));
        assert_eq!(under(1).iter().filter(|(code, _)| *code == "ZP102").count(), 1);
    }
}

/// A change of the values that an optimizer consumes.
type Change = fn(&mut [f32]);

/// The trace of a run in which the optimizer of rank 1 consumed changed values, with the step of each change.
fn changed(changes: &[(usize, Change)]) -> Trace {
    let mut trace = Simulation::new(request(), Cut::Replicated).trace();
    for (step, change) in changes {
        change_input(&mut trace, 1, *step, change);
    }
    trace
}

/// The trace of a run of this number of ranks, in which the optimizers of `owners` consumed changed values in step 0.
fn changed_in_step_0(ranks: usize, owners: &[usize], change: impl Fn(&mut [f32])) -> Trace {
    let mut trace = Simulation::new(request_of(ranks), Cut::Replicated).trace();
    for owner in owners {
        change_input(&mut trace, *owner, 0, &change);
    }
    trace
}

fn request_of(ranks: usize) -> SpecRequest {
    SpecRequest { world_size: Some(ranks), ..request() }
}

/// Changes the values that a rank's optimizer consumed in a step.
fn change_input(trace: &mut Trace, rank: usize, step: usize, change: impl Fn(&mut [f32])) {
    edit(trace, rank, |event| {
        let Event::Buffer { step: Some(at), point: Point::OptimizerInput, payload, .. } = event
        else {
            return;
        };
        if *at == step {
            let mut values: Vec<f32> =
                payload.values().unwrap().into_iter().map(|value| value as f32).collect();
            change(&mut values);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            *payload = Payload::new(payload.dtype, &bytes, payload.norm.unwrap_or_default());
        }
    });
}

/// Overwrites values with foreign ones, which no gradient of the run explains and which are not displaced
/// gradients.
fn foreign(values: &mut [f32]) {
    for (at, value) in values.iter_mut().enumerate() {
        *value = ((at * at * 7 + at * 3) % 13) as f32 + 100.0;
    }
}

/// The codes of the findings about the optimizers' input, with the step in which each begins.
fn consumed(report: &Report) -> Vec<(&str, Option<usize>)> {
    let is_about = |it: &&Finding| ["ZP107", "ZP402"].contains(&it.code.as_str());
    report.findings.iter().filter(is_about).map(|it| (it.code.as_str(), it.step)).collect()
}

#[test]
fn foreign_data_in_a_later_step_is_no_consequence_of_slices_that_were_displaced_before() {
    let shifted = |values: &mut [f32]| values.rotate_left(1);
    let report = diagnose(&changed(&[(0, shifted), (1, foreign)]));
    assert_eq!(consumed(&report), [("ZP107", Some(1)), ("ZP402", Some(0))], "{report:#?}");
    // The same displacement in both steps is one finding.
    let report = diagnose(&changed(&[(0, shifted), (1, shifted)]));
    assert_eq!(consumed(&report), [("ZP402", Some(0))]);
    assert!(report.findings[0].evidence.iter().any(|it| it == "seen in steps 0 and 1"));
    // Another displacement in the later step is a finding of its own.
    let report = diagnose(&changed(&[(0, shifted), (1, |values| values.rotate_left(3))]));
    assert_eq!(consumed(&report), [("ZP402", Some(0)), ("ZP402", Some(1))]);
}

/// The number of elements in a displaced piece that is too short to be recognised by itself.
const SHORT: usize = 12;

/// Overwrites a short piece at each start with the piece that lies five elements further on in the flat
/// order.
fn displace(values: &mut [f32], starts: &[usize]) {
    for &start in starts {
        values.copy_within(start + 5..start + 5 + SHORT, start);
    }
}

#[test]
fn short_pieces_that_are_displaced_alike_are_found_together() {
    let plan = Simulation::new(request(), Cut::Replicated).plan;
    let [.., bias, head] = plan.params() else { panic!("a model of two parameters and more") };
    assert_eq!([bias.offset, head.offset], [323, 344]);
    let report = diagnose(&changed(&[(0, |values| displace(values, &[323, 344]))]));
    assert_eq!(consumed(&report), [("ZP402", Some(0))], "{report:#?}");
    let message = &report.findings[0].message;
    assert!(message.contains("5 elements too far to the front"), "{message}");
    // A single short piece is not recognised.
    let report = diagnose(&changed(&[(0, |values| displace(values, &[344]))]));
    assert!(consumed(&report).iter().all(|(code, _)| *code == "ZP107"), "{report:#?}");
}

/// The share of rank 1 in the optimizers' input of step 0, in a run of this number of ranks.
fn share_of_rank_1(ranks: usize) -> Vec<f32> {
    let mut simulation = Simulation::new(request_of(ranks), Cut::Replicated);
    let alone = |at: Place<'_>, right: f64| if at.source.1 == 1 { right } else { 0.0 };
    simulation.weight = Box::new(alone);
    let trace = simulation.trace();
    let share = trace.records.iter().find_map(|record| match &record.event {
        Event::Buffer { step: Some(0), point: Point::OptimizerInput, payload, .. } => {
            Some(payload.values().unwrap())
        }
        _ => None,
    });
    share.unwrap().into_iter().map(|value| value as f32).collect()
}

#[test]
fn own_gradients_at_another_place_are_found_as_such() {
    let own = share_of_rank_1(2);
    // The values of the last parameter are replaced by those from the beginning of the second parameter.
    let report = diagnose(&changed_in_step_0(2, &[1], |values| {
        values[344..].copy_from_slice(&own[34..][..39]);
    }));
    assert_eq!(consumed(&report), [("ZP402", Some(0))], "{report:#?}");
    let evidence = &report.findings[0].evidence[0];
    assert!(evidence.contains("on, only of rank 1, divided"), "{evidence}");
}

#[test]
fn a_rank_that_reduces_its_parameters_in_another_order_is_named() {
    let share = share_of_rank_1(4);
    let others = |values: &mut [f32]| {
        for at in 0..39 {
            values[344 + at] += share[34 + at] - share[344 + at];
        }
    };
    let report = diagnose(&changed_in_step_0(4, &[0, 1, 2, 3], others));
    // The recorded norms are those of the unchanged values, which is ZP904.
    let [finding, _] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((finding.code.as_str(), finding.rank), ("ZP802", Some(1)), "{finding:#?}");
    assert!(finding.evidence[0].contains("contain the gradients of rank 1 from"), "{finding:#?}");
    // Foreign values that were added to a sum are nobody's share.
    let report = diagnose(&changed_in_step_0(4, &[0, 1, 2, 3], |values| {
        (0..39).for_each(|at| values[344 + at] += (at * at % 7) as f32);
    }));
    assert!(report.findings.iter().all(|it| it.code != "ZP802"), "{report:#?}");
}

#[test]
fn gradients_that_were_added_to_those_of_other_elements_are_found_as_such() {
    let overlapping = |values: &mut [f32]| {
        let others = values[344..][..30].to_vec();
        for (value, other) in values[40..].iter_mut().zip(others) {
            *value += other;
        }
    };
    let report = diagnose(&changed(&[(0, overlapping), (1, overlapping)]));
    assert_eq!(consumed(&report), [("ZP402", Some(0))], "{report:#?}");
    let finding = &report.findings[0];
    assert!(finding.message.contains("slices overlap"), "{}", finding.message);
    assert!(finding.evidence[0].contains("30 elements from"), "{}", finding.evidence[0]);
    assert!(finding.evidence.iter().any(|it| it == "seen in steps 0 and 1"));
    // Gradients added at their own places count twice.
    let report = diagnose(&changed(&[(0, |values| values.iter_mut().for_each(|it| *it *= 2.0))]));
    assert!(consumed(&report).is_empty(), "{report:#?}");
}

#[test]
fn memory_that_nobody_wrote_is_looked_for_elsewhere_in_vain() {
    for rubbish in [f32::MIN, f32::MAX, -3e30, 1e-40] {
        let mut trace = Simulation::new(request(), Cut::Replicated).trace();
        edit(&mut trace, 1, |event| {
            if let Event::Buffer { point: Point::OptimizerInput, payload, .. } = event {
                let bytes = rubbish.to_le_bytes().repeat(payload.numel);
                *payload = Payload::new(payload.dtype, &bytes, 1.0);
            }
        });
        let report = diagnose(&trace);
        assert!(consumed(&report).iter().all(|(code, _)| *code == "ZP107"), "{report:#?}");
        assert_ne!(report.verdict, Verdict::Clean);
    }
}

#[test]
fn elements_in_reverse_order_are_not_said_to_lie_at_some_distance() {
    for seed in 0..6 {
        let request = SpecRequest { steps: Some(1), seed: Some(seed), ..request() };
        let mut trace = Simulation::new(request, Cut::Replicated).trace();
        for rank in 0..2 {
            edit(&mut trace, rank, |event| {
                if let Event::Buffer { point: Point::OptimizerInput, payload, .. } = event {
                    let values = payload.values().unwrap().into_iter().rev();
                    let bytes: Vec<u8> =
                        values.flat_map(|value| (value as f32).to_le_bytes()).collect();
                    *payload =
                        Payload::new(payload.dtype, &bytes, payload.norm.unwrap_or_default());
                }
            });
        }
        let report = diagnose(&trace);
        assert!(consumed(&report).iter().all(|(code, _)| *code == "ZP107"), "{seed}: {report:#?}");
        assert_ne!(report.verdict, Verdict::Clean);
    }
}
