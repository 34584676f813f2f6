//! Overflows and skipped steps: the decision of each rank, and whether the overflow had a reason.

use crate::infinity;
use crate::observed::Observed;
use zprobe_model::spec::{Dtype, Plan};
use zprobe_model::trace::{Event, Phase, Point};

/// A rank's decision about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The rank took the step.
    Taken,
    /// The rank saw an overflow and skipped the step.
    Skipped,
}

/// Returns a rank's decision about a step; `None` if the rank ended before its decision.
pub fn decision(
    observed: &Observed<'_>,
    plan: &Plan,
    step: usize,
    rank: usize,
) -> Option<Decision> {
    if let Some(scaled) = observed.updates.scaled.get(&(step, rank)) {
        return Some(if scaled.overflow { Decision::Skipped } else { Decision::Taken });
    }
    if observed.buffers.of_rank(rank, Point::OptimizerInput, step).next().is_some() {
        return Some(Decision::Taken);
    }
    // A rank that died in the step right after it met the infinity could not report its decision.
    let stepping = matches!(
        observed.processes.ranks[rank].last_phase,
        Some(Event::PhaseEntered { step: at, phase: Phase::OptimizerStep, .. }) if *at == step
    );
    let infinite =
        step < observed.spec.infinite_steps() && infinity::element(observed, plan).is_some();
    if !observed.spec.scales_loss() || !infinite || !stepping {
        return None;
    }
    // A rank that hangs in a step that others skipped has taken the step.
    let skipped = |other: usize| observed.updates.skipped(step, other);
    if observed.processes.ranks[rank].failure.is_some() {
        Some(Decision::Skipped)
    } else if observed.processes.timed_out.is_some() && (0..observed.spec.world_size).any(skipped) {
        Some(Decision::Taken)
    } else {
        None
    }
}

/// Returns the reason why a step may overflow; `None` if no gradient of the step can overflow.
pub fn reason(observed: &Observed<'_>, plan: &Plan, step: usize) -> Option<String> {
    if step < observed.spec.infinite_steps() && infinity::element(observed, plan).is_some() {
        return Some("one element of one rank's gradient is infinite".to_owned());
    }
    let spec = observed.spec;
    let scale =
        (0..spec.world_size).find_map(|rank| observed.updates.scaled.get(&(step, rank)))?.scale;
    let narrow = [spec.dtype, spec.grad_accum_dtype, spec.narrowest_comm_dtype()];
    let largest = narrow.into_iter().map(Dtype::largest).fold(f64::INFINITY, f64::min);
    // A gradient is ±W times the loss scale after the loss was divided by GA. The largest value that an engine can
    // hold is the sum of all W·GA gradients, before the division by W.
    let (world, ga) = (spec.world_size as f64, spec.gradient_accumulation_steps as f64);
    let most = world * world * ga * scale;
    (most > largest).then(|| {
        format!(
            "with loss scale {scale}, the sum of {} gradients may reach {most}, but {largest} is the largest number \
             of the dtype",
            spec.contributions_per_step()
        )
    })
}
