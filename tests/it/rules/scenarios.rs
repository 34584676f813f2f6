//! Simulated traces for rules that no fault of the native engine triggers.

use std::path::Path;

use zprobe_model::spec::{Dtype, Engine, Shape, SpecRequest};
use zprobe_model::trace::{
    Differing, Event, FlushReason, LayoutName, Outcome, Record, StateCompared, Trace, Transform,
    Unequal,
};

use crate::simulator::{Cut, Simulation};

/// Every scenario, by name.
pub fn scenarios() -> Vec<(String, Trace)> {
    type Scenario = (&'static str, fn() -> Trace);
    let scenarios: [Scenario; 9] = [
        ("tail-held-by-nobody", tail_held_by_nobody),
        ("overflow-seen-by-one-rank", overflow_seen_by_one_rank),
        ("step-skipped-without-reason", step_skipped_without_reason),
        ("loss-scale-grows-after-one-step", || loss_scale_grows_after_one_step(&[0, 1])),
        ("norm-times-65536", norm_times_65536),
        ("other-collective-on-one-rank", other_collective_on_one_rank),
        ("hooks-never-fired", hooks_never_fired),
        ("each-microbatch-orthogonalised", each_microbatch_orthogonalised),
        ("masters-rounded-by-a-checkpoint", masters_rounded_by_a_checkpoint),
    ];
    scenarios.map(|(name, trace)| (format!("simulated-{name}"), trace())).into()
}

/// A request for two ranks of a real engine.
pub fn request() -> SpecRequest {
    SpecRequest { engine: Some(Engine::DeepSpeed), world_size: Some(2), ..SpecRequest::default() }
}

/// A request for two ranks of a real engine in fp16.
pub fn fp16() -> SpecRequest {
    let dtype = Some(Dtype::Fp16);
    SpecRequest { dtype, grad_accum_dtype: dtype, comm_dtype: dtype, ..request() }
}

/// Changes the events of one rank.
pub fn edit(trace: &mut Trace, rank: usize, mut change: impl FnMut(&mut Event)) {
    for record in trace.records.iter_mut().filter(|record| record.rank == Some(rank)) {
        change(&mut record.event);
    }
}

/// The recorded trace of a script.
pub fn recorded(name: &str) -> Trace {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/traces");
    Trace::read(&traces.join(name)).expect("a readable trace")
}

/// Ends a rank with an exception just before an event.
pub fn crash(trace: &mut Trace, rank: usize, before: impl Fn(&Event) -> bool, message: &str) {
    let mut failed = false;
    let message = message.to_owned();
    trace.records.retain_mut(|record| {
        match &mut record.event {
            Event::RankExited { rank: ended, outcome } if *ended == rank => {
                *outcome = Outcome::Code(1);
            }
            event if record.rank == Some(rank) && !failed && before(event) => {
                *event = Event::Failed { message: message.clone() };
                failed = true;
            }
            _ => return record.rank != Some(rank) || !failed,
        }
        true
    });
}

/// The scenario of a rank whose partition ends before the model does.
fn tail_held_by_nobody() -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    edit(&mut trace, 1, |event| {
        if let Event::Layout { layout: LayoutName::Partition, segments, .. } = event
            && let Some(last) = segments.iter_mut().rfind(|segment| segment.param.is_some())
        {
            last.param = None;
        }
    });
    trace
}

/// The scenario of DeepSpeed before 0.18.0: the rank with the infinity skips the step, and the other rank
/// takes it.
fn overflow_seen_by_one_rank() -> Trace {
    let request = SpecRequest { shapes: vec![Shape::InfinityOnOneRank], ..fp16() };
    let mut simulation = Simulation::new(request, Cut::Flat);
    simulation.overflow = Box::new(|_, rank, infinite| infinite && rank == 1);
    let mut trace = simulation.trace();
    for rank in 0..2 {
        let message = "RuntimeError: The size of tensor a must match the size of tensor b";
        let next_step = |event: &Event| matches!(event, Event::GraphWalked { step: 1, .. });
        crash(&mut trace, rank, next_step, message);
    }
    trace
}

fn step_skipped_without_reason() -> Trace {
    let mut simulation = Simulation::new(fp16(), Cut::Flat);
    simulation.overflow = Box::new(|step, _, overflow| overflow || step == 1);
    simulation.trace()
}

/// The scenario in which some ranks double the loss scale after the first step, which had no overflow.
pub fn loss_scale_grows_after_one_step(ranks: &[usize]) -> Trace {
    let mut trace = Simulation::new(fp16(), Cut::Flat).trace();
    for &rank in ranks {
        edit(&mut trace, rank, |event| {
            if let Event::LossScaled { step: 1, scale, .. } = event {
                *scale *= 2.0;
            }
        });
    }
    trace
}

/// The scenario of DeepSpeed before 0.18.5, which chooses the wrong optimizer class: the norm is 65536 times
/// too large.
fn norm_times_65536() -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    for rank in 0..2 {
        edit(&mut trace, rank, |event| {
            if let Event::GradientNorm { norm: Some(norm), .. } = event {
                *norm *= 65536.0;
            }
        });
    }
    trace
}

fn other_collective_on_one_rank() -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    edit(&mut trace, 1, |event| {
        if let Event::CollectiveEntered { sequence: 1, numel, .. } = event {
            *numel /= 2;
        }
    });
    trace
}

/// The scenario of DeepSpeed with torch 2.0: no hook fires, and the first reduction finds an empty bucket.
fn hooks_never_fired() -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    for rank in 0..2 {
        edit(&mut trace, rank, |event| match event {
            Event::HooksFired { fired, .. } => fired.fill(0),
            Event::CollectiveEntered { .. } => {
                *event = Event::BucketFlushed {
                    step: 0,
                    microbatch: 3,
                    flush: 0,
                    reason: FlushReason::Boundary,
                    elements: 0,
                    capacity: 96,
                    params: Vec::new(),
                };
            }
            _ => {}
        });
        let message = "IndexError: list index out of range (deepspeed/runtime/zero/\
                       stage_1_and_2.py:1027, in reduce_independent_p_g_buckets_and_remove_grads)";
        let in_step = |event: &Event| {
            matches!(event, Event::PhaseEntered { phase, .. }
            if *phase == zprobe_model::trace::Phase::OptimizerStep)
        };
        crash(&mut trace, rank, in_step, message);
    }
    trace
}

/// The scenario of DeepSpeed #8443, Muon under ZeRO-3: every reduction orthogonalises the gradients, and
/// there is one reduction for each microbatch.
fn each_microbatch_orthogonalised() -> Trace {
    orthogonalised(|_| true)
}

/// The trace of an engine that orthogonalises gradients after the backwards of some microbatches.
pub fn orthogonalised(is_transformed: impl Fn(usize) -> bool) -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    let with_follower = |record: Record| {
        let event = match record.event {
            Event::HooksFired { step, microbatch, .. } if is_transformed(microbatch) => {
                let how = Transform::Orthogonalised;
                Some(Event::GradientsTransformed { step, microbatch, how })
            }
            _ => None,
        };
        let follower = event.map(|event| Record { event, ..record.clone() });
        [Some(record), follower].into_iter().flatten()
    };
    trace.records = trace.records.into_iter().flat_map(with_follower).collect();
    trace
}

/// A run of two ranks that goes on from a checkpoint before step 1, with the comparison of the state on each rank.
pub fn resumed(states: impl Fn(usize) -> Vec<StateCompared>) -> Trace {
    let request = SpecRequest { resume_before: Some(1), ..request() };
    let mut trace = Simulation::new(request, Cut::Flat).trace();
    for rank in 0..2 {
        let is_next = |it: &Record| {
            it.rank == Some(rank) && matches!(it.event, Event::GraphWalked { step: 1, .. })
        };
        let place = trace.records.iter().position(is_next).expect("a second step");
        let event = Event::CheckpointLoaded { step: 1, states: states(rank) };
        let record = Record { event, ..trace.records[place].clone() };
        trace.records.insert(place, record);
    }
    trace
}

/// A kind of state with a difference in the given parameters, or without parameters in a number of the engine.
pub fn differing(state: &str, params: &[usize], saved: f64, loaded: f64) -> StateCompared {
    let of_param = |&param: &usize| Differing { param, elements: 4, first: 0 };
    StateCompared {
        state: state.to_owned(),
        differing: params.iter().map(of_param).collect(),
        rounded: false,
        numbers: Some(Unequal { saved: Some(saved), loaded: Some(loaded) }),
    }
}

/// The scenario of an engine that copies the master weights from the rounded parameters after it has loaded a checkpoint.
fn masters_rounded_by_a_checkpoint() -> Trace {
    resumed(|rank| {
        let masters = differing("master weights", &[rank], 0.1, 0.10009765625);
        vec![StateCompared { rounded: true, ..masters }]
    })
}
