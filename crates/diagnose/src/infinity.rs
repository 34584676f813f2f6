//! The one element that may be infinite: with the shape `infinity-on-one-rank`, element 0 of one
//! parameter in the gradient of step 0, microbatch 0, on the last rank.
//!
//! After the reduction it must be infinite wherever it is held, and nothing else may be. Parameters
//! that were updated with it stay infinite; if the engine skipped the step, they never are.

use zprobe_model::spec::{Plan, Shape};
use zprobe_model::trace::Point;

use super::observed::{Buffer, Observed};
use super::placement::{Fragment, fragments};

/// The element of the flat order that a run makes infinite, if it makes one.
pub fn element(observed: &Observed<'_>, plan: &Plan) -> Option<usize> {
    if !observed.spec.has_shape(Shape::InfinityOnOneRank) {
        return None;
    }
    let name = Shape::InfinityOnOneRank.param()?;
    Some(plan.params().iter().find(|param| param.name == name)?.offset)
}

/// The element of the flat order that may be infinite in this buffer.
pub fn planned(observed: &Observed<'_>, plan: &Plan, buffer: &Buffer<'_>) -> Option<usize> {
    let element = element(observed, plan)?;
    let step = buffer.step?;
    let from_here = buffer.rank + 1 == observed.spec.world_size;
    let is_planned = match buffer.point {
        Point::LocalGradient => step == 0 && buffer.microbatch == Some(0) && from_here,
        Point::Accumulator => step == 0 && from_here,
        Point::Reduced | Point::BeforeStep | Point::OptimizerInput => step == 0,
        Point::MasterWeights | Point::Parameters => !observed.skipped(0, buffer.rank),
    };
    is_planned.then_some(element)
}

/// Parts of the parameters in a buffer, as far as it was recorded.
pub fn parts(observed: &Observed<'_>, plan: &Plan, buffer: &Buffer<'_>) -> Vec<Fragment> {
    let layout = observed.recorded(buffer.rank, buffer.layout);
    let mut parts = fragments(layout.unwrap_or_default(), plan);
    parts.retain(|part| part.start + part.flat.len() <= buffer.payload.numel);
    parts
}

/// Takes the planned element out of the parts in which its value really is infinite or NaN; also
/// returns how many such elements there were.
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
