//! The one element that may be infinite: the shape `infinity-on-one-rank` makes element 0 of one parameter infinite
//! in the gradient of microbatch 0 on the last rank, in the first step or in several first steps.
//!
//! After the reduction, this element must be infinite wherever it is held, and no other element may be. Parameters
//! updated with the infinity stay infinite; if the engine skipped the step, they never become infinite.

use zprobe_model::spec::{Plan, Shape};
use zprobe_model::trace::Point;

use crate::observed::{Buffer, Observed};
use crate::placement::{Fragment, fragments};

/// Returns the element of the flat order that the run makes infinite; `None` for a run without the shape
/// `infinity-on-one-rank`.
pub fn element(observed: &Observed<'_>, plan: &Plan) -> Option<usize> {
    if !observed.spec.has_shape(Shape::InfinityOnOneRank) {
        return None;
    }
    let name = Shape::InfinityOnOneRank.param()?;
    Some(plan.params().iter().find(|param| param.name == name)?.offset)
}

/// Returns the element of the flat order that may be infinite in this buffer; `None` if all of its elements must be
/// finite.
pub fn planned(observed: &Observed<'_>, plan: &Plan, buffer: &Buffer<'_>) -> Option<usize> {
    let element = element(observed, plan)?;
    let step = buffer.step?;
    let from_here = buffer.rank + 1 == observed.spec.world_size;
    let steps = 0..observed.spec.infinite_steps();
    let is_planned = match buffer.point {
        Point::LocalGradient => steps.contains(&step) && buffer.microbatch == Some(0) && from_here,
        Point::Accumulator => steps.contains(&step) && from_here,
        Point::Reduced | Point::BeforeStep | Point::OptimizerInput => steps.contains(&step),
        Point::MasterWeights | Point::Parameters => {
            steps.clone().any(|step| !observed.updates.skipped(step, buffer.rank))
        }
    };
    is_planned.then_some(element)
}

/// Returns the parts of parameters that a buffer recorded.
pub fn parts(observed: &Observed<'_>, plan: &Plan, buffer: &Buffer<'_>) -> Vec<Fragment> {
    let layout = observed.model.recorded(buffer.rank, buffer.layout);
    let mut parts = fragments(layout.unwrap_or_default(), plan);
    parts.retain(|part| part.start + part.flat.len() <= buffer.payload.numel);
    parts
}

/// Removes, from each part, the element that is planned to be infinite or NaN. Also returns the number of removed
/// elements.
pub fn without_planned(
    parts: Vec<Fragment>,
    values: &[f64],
    planned: Option<usize>,
) -> (Vec<Fragment>, usize) {
    let mut kept = Vec::new();
    let mut taken = 0;
    for part in parts {
        let at = planned.filter(|element| part.flat.contains(element)).map(|element| {
            let place = part.start + element - part.flat.start;
            (element, place)
        });
        match at.filter(|(_, place)| !values[*place].is_finite()) {
            None => kept.push(part),
            Some((element, place)) => {
                taken += 1;
                let before = Fragment { flat: part.flat.start..element, ..part.clone() };
                let after = Fragment { flat: element + 1..part.flat.end, start: place + 1, ..part };
                kept.extend([before, after].into_iter().filter(|part| !part.flat.is_empty()));
            }
        }
    }
    (kept, taken)
}
