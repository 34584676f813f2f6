//! Changes of the gradients that a script makes on purpose between the last backward and the optimizer's step, such as
//! added noise or gradient centralisation.

use std::collections::BTreeSet;

use zprobe_model::trace::Point;

use crate::decode::Decoded;
use crate::observed::{Buffer, Observed};

/// Returns the steps in which the script changed its gradients on purpose: the gradients were right after the last
/// backward, the change is no sum of gradients, all ranks made the same change, and it has changed each parameter of
/// two or more dimensions. A mistake changes the gradients of some parameters, or differs between ranks. Returns
/// nothing if another step has a change that is not on purpose.
pub fn steps(observed: &Observed<'_>, decoded: &Decoded) -> BTreeSet<usize> {
    if observed.spec.script().is_none() {
        return BTreeSet::new();
    }
    let steps: BTreeSet<usize> =
        decoded.departed(Point::OptimizerInput).map(|entry| entry.step).collect();
    let on_purpose = |step: &usize| is_on_purpose(observed, decoded, *step);
    if steps.iter().all(on_purpose) { steps } else { BTreeSet::new() }
}

fn is_on_purpose(observed: &Observed<'_>, decoded: &Decoded, step: usize) -> bool {
    let mut before = decoded.at(Point::BeforeStep, step).peekable();
    let was_right = before.peek().is_some() && before.all(|entry| entry.as_planned);
    let is_unexplained =
        decoded.at(Point::OptimizerInput, step).any(|entry| entry.residual > entry.tolerance);
    was_right && is_unexplained && is_shared(observed, step) && changed_all(observed, step)
}

/// True if each rank consumed the same elements with the same values in a step.
fn is_shared(observed: &Observed<'_>, step: usize) -> bool {
    let consumed = |rank| observed.buffers.of_rank(rank, Point::OptimizerInput, step);
    let read = |rank| {
        let of_buffer =
            |it: &Buffer<'_>| (observed.model.recorded(rank, it.layout), it.payload.digest.clone());
        consumed(rank).map(of_buffer).collect::<Vec<_>>()
    };
    let first = read(0);
    !first.is_empty() && (1..observed.spec.world_size).all(|rank| read(rank) == first)
}

/// True if each recorded parameter of two or more dimensions was changed before a step, on the first rank.
fn changed_all(observed: &Observed<'_>, step: usize) -> bool {
    let read = |point| {
        let buffer = observed.buffers.of_rank(0, point, step).next()?;
        Some((observed.model.recorded(0, buffer.layout)?, buffer.payload.values().ok()?))
    };
    let (Some((segments, consumed)), Some((_, before))) =
        (read(Point::OptimizerInput), read(Point::BeforeStep))
    else {
        return false;
    };
    let (mut all, mut changed, mut start) = (BTreeSet::new(), BTreeSet::new(), 0);
    for segment in segments {
        let place = start..start + segment.len;
        start += segment.len;
        let is_wide =
            |param: &usize| observed.model.params.get(*param).is_some_and(|it| it.shape.len() > 1);
        let Some(param) = segment.param.filter(is_wide) else { continue };
        all.insert(param);
        if consumed.get(place.clone()) != before.get(place) {
            changed.insert(param);
        }
    }
    !all.is_empty() && changed == all
}
