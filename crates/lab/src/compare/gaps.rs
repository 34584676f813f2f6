//! Gaps between the numbers of two runs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::trace::{Event, ParamInfo, Payload, Point, Trace};
use zprobe_report::{Norms, Report};

/// The difference between two buffers of the same elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// The number of elements that differ.
    pub differing: usize,
    /// The number of elements that were compared.
    pub of: usize,
    /// The largest absolute difference of an element; `None` where a difference is not finite.
    pub largest: Option<f64>,
    /// The norm of the difference, relative to the norm of the first buffer; `None` where that norm is 0, or the
    /// result is not finite.
    pub relative: Option<f64>,
}

/// The gap between the norms of two runs at one point of the gradient's journey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NormGap {
    /// The point of the gradient's journey.
    pub point: Point,
    /// The number of norms that both runs have, each of one moment and one rank.
    pub compared: usize,
    /// The number of compared norms that are not equal.
    pub differing: usize,
    /// The largest difference, relative to the norm in the first run.
    pub largest: f64,
}

impl Gap {
    /// Compares two buffers of the same length.
    pub fn of(a: &[f64], b: &[f64]) -> Self {
        let square = |x: f64| x * x;
        let differences = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
        let norm = a.iter().copied().map(square).sum::<f64>().sqrt();
        let apart = differences().map(square).sum::<f64>().sqrt();
        Self {
            differing: a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count(),
            of: a.len(),
            largest: differences()
                .try_fold(0.0, |most: f64, it| it.is_finite().then(|| most.max(it))),
            relative: Some(apart / norm).filter(|relative| norm > 0.0 && relative.is_finite()),
        }
    }
}

/// The gaps between the parameters of rank 0 after each step that both runs recorded; empty if the models have
/// different shapes.
pub(super) fn parameter_gaps(a: Option<&Trace>, b: Option<&Trace>) -> BTreeMap<usize, Gap> {
    let (Some(a), Some(b)) = (a, b) else { return BTreeMap::new() };
    if model(a) != model(b) {
        return BTreeMap::new();
    }
    let (ours, theirs) = (parameters(a), parameters(b));
    let gap = |(step, payload): (usize, &Payload)| {
        let other = theirs.get(&step)?;
        let (one, two) = (payload.values().ok()?, other.values().ok()?);
        (one.len() == two.len()).then(|| (step, Gap::of(&one, &two)))
    };
    ours.into_iter().filter_map(gap).collect()
}

fn model(trace: &Trace) -> Option<&[ParamInfo]> {
    trace.events().find_map(|(_, event)| match event {
        Event::Model { params } => Some(params.as_slice()),
        _ => None,
    })
}

/// The parameters of rank 0 after each step, by step.
fn parameters<'a>(trace: &'a Trace) -> BTreeMap<usize, &'a Payload> {
    let of_event = |(rank, event): (Option<usize>, &'a Event)| match (rank, event) {
        (Some(0), Event::Buffer { step: Some(step), point: Point::Parameters, payload, .. }) => {
            Some((*step, payload))
        }
        _ => None,
    };
    trace.events().filter_map(of_event).collect()
}

/// The gaps between the norms of two runs, by point of the gradient's journey.
pub(super) fn norm_gaps(a: &Report, b: &Report) -> Vec<NormGap> {
    let mut gaps: BTreeMap<Point, NormGap> = BTreeMap::new();
    let same = |a: &Norms, b: &Norms| {
        (a.step, a.microbatch, a.point, a.norms.len())
            == (b.step, b.microbatch, b.point, b.norms.len())
    };
    for ours in &a.norms {
        let Some(theirs) = b.norms.iter().find(|theirs| same(ours, theirs)) else { continue };
        let gap = gaps.entry(ours.point).or_insert_with(|| NormGap {
            point: ours.point,
            compared: 0,
            differing: 0,
            largest: 0.0,
        });
        for pair in ours.norms.iter().zip(&theirs.norms) {
            let (Some(a), Some(b)) = pair else { continue };
            gap.compared += 1;
            gap.differing += usize::from(a != b);
            if a != b && *a != 0.0 {
                gap.largest = gap.largest.max((a - b).abs() / a.abs());
            }
        }
    }
    gaps.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_relative_to_the_first_buffer() {
        let gap = Gap::of(&[3.0, 4.0, 0.0], &[3.0, 4.0, -0.5]);
        let expected = Gap { differing: 1, of: 3, largest: Some(0.5), relative: Some(0.1) };
        assert_eq!(gap, expected);
    }

    #[test]
    fn what_is_not_finite_differs_and_has_no_size() {
        for (a, b) in [(f64::INFINITY, 1.0), (1.0, f64::NAN), (f64::INFINITY, f64::NEG_INFINITY)] {
            let gap = Gap::of(&[a, 2.0], &[b, 2.0]);
            assert_eq!((gap.differing, gap.largest, gap.relative), (1, None, None), "{a} {b}");
        }
        assert_eq!(Gap::of(&[0.0], &[0.0]).relative, None);
    }
}
