//! Loss and gradient norm of each step, as a training log would show them.

use std::collections::BTreeMap;

use zprobe_model::trace::{Event, Point, Trace};
use zprobe_report::Step;

use crate::case::Case;

/// Returns the loss and the norms of each step, as far as they are known.
pub fn steps(case: &Case<'_>, trace: &Trace) -> Vec<Step> {
    let losses = losses(trace);
    let spec = case.observed.spec;
    // The mean over a part of the microbatches is not the loss of the step.
    let is_whole = spec.recording.microbatches.is_none();
    spec.recorded_steps()
        .map(|step| Step {
            step,
            loss: losses.get(&step).filter(|_| is_whole).and_then(|losses| mean(losses)),
            gradient_norm: case.observed.updates.norms.get(&(step, 0)).and_then(|norm| norm.norm),
            input_norm: input_norm(case, step),
        })
        .collect()
}

/// Returns the losses of all microbatches of all ranks, by step.
fn losses(trace: &Trace) -> BTreeMap<usize, Vec<Option<f64>>> {
    let mut losses: BTreeMap<usize, Vec<Option<f64>>> = BTreeMap::new();
    for (_, event) in trace.events() {
        if let Event::Loss { step, value, .. } = event {
            losses.entry(*step).or_default().push(*value);
        }
    }
    losses
}

/// The mean of a step's losses; `None` if one of them is not finite.
fn mean(losses: &[Option<f64>]) -> Option<f64> {
    let losses: Vec<f64> = losses.iter().copied().collect::<Option<_>>()?;
    (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64)
}

/// Returns the norm of the gradient that all ranks' inner optimizers consumed. `None` if an input was not seen, or if
/// only some elements are on several ranks, so that it is unknown which of them to count once.
fn input_norm(case: &Case<'_>, step: usize) -> Option<f64> {
    let observed = &case.observed;
    let inputs: Vec<_> = observed.buffers.at(Point::OptimizerInput, step).collect();
    if inputs.len() != observed.spec.world_size {
        return None;
    }
    let held = |rank: usize| observed.model.layouts.get(&(rank, inputs[rank].layout)).copied();
    let mut norms: Vec<f64> = Vec::new();
    let mut elements = 0;
    for input in &inputs {
        norms.push(input.payload.norm?);
        let segments = held(input.rank)?.iter().filter(|segment| segment.param.is_some());
        elements += segments.map(|segment| segment.len).sum::<usize>();
    }
    let of_model: usize = {
        let params = case.plan.params().iter().filter(|param| param.trainable);
        params.map(zprobe_model::spec::plan::Param::numel).sum()
    };
    if elements == of_model {
        return Some(norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt());
    }
    // Every rank holds the whole model.
    (elements == of_model * norms.len()).then(|| norms[0])
}
