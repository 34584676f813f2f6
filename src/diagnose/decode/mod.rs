//! Contribution weights: which gradients a buffer really holds.
//!
//! For a buffer `b` this finds `w` with `b = 1/(W·GA)·Σ w[r,m]·g[r,m]`: exactly for coded data
//! (`coded`), by least squares otherwise (`dense`).

mod coded;
mod dense;

use std::collections::BTreeMap;

use crate::report::Contribution;
use crate::report::words::counted;
use crate::spec::{Model, Plan, RunSpec};
use crate::trace::Point;

use super::observed::{Buffer, Observed};

/// What all buffers contain.
pub struct Decoded {
    /// One entry per buffer, or several where weights differ within a buffer.
    pub contributions: Vec<Contribution>,
    /// Smallest change of a weight at the optimizer's input that would have been seen; none if
    /// nothing could be read there.
    pub smallest_weight_deviation: Option<f64>,
    /// Largest condition number of a system that was solved: 1 for codes; none if none was.
    pub condition: Option<f64>,
    /// Smallest change of one element that would have been seen; none for dense data.
    pub smallest_element_deviation: Option<f64>,
    /// Why weights could not be read, one sentence each.
    pub refusals: Vec<String>,
    /// Whether every rank's optimizer's input was read as a whole in every step.
    input_complete: bool,
    /// Elements of the optimizer's input that were read, by step and rank.
    read: BTreeMap<(usize, usize), usize>,
}

impl Decoded {
    /// Whether every element of every optimizer's input was read, well enough to conclude.
    pub fn complete(&self) -> bool {
        self.input_complete && self.smallest_weight_deviation.is_some()
    }
}

/// Reads the weights in every buffer.
pub fn decode(observed: &Observed<'_>, plan: &Plan) -> Decoded {
    let mut decoded = match observed.spec.model {
        Model::Coded => coded::decode(observed, plan),
        Model::Mlp => dense::decode(observed, plan),
    };
    decoded.check_completeness(observed, plan);
    decoded.refusals.sort();
    decoded.refusals.dedup();
    decoded
}

impl Decoded {
    /// What was not read is not right: a clean verdict needs every element that an optimizer was
    /// to consume, on every rank and in every step.
    fn check_completeness(&mut self, observed: &Observed<'_>, plan: &Plan) {
        let spec = observed.spec;
        for step in 0..spec.steps {
            let partial: Vec<usize> = (0..spec.world_size)
                .filter(|&rank| {
                    let owned = plan.partition(rank);
                    let owned = owned.end.min(plan.numel()) - owned.start.min(plan.numel());
                    self.read.get(&(step, rank)).copied().unwrap_or(0) != owned
                })
                .collect();
            if !partial.is_empty() {
                self.refusals.push(format!(
                    "the optimizer's input of step {step} on {}: it was not read as a whole",
                    counted("rank", &partial)
                ));
            }
            self.input_complete &= partial.is_empty();
        }
    }
}

/// Weights read from one piece of a buffer.
struct Reading {
    /// By column of the run (see [`RunSpec::column`]).
    weights: Vec<f64>,
    /// What no gradient explains.
    residual: f64,
    /// Bound on the error of a weight.
    tolerance: f64,
    /// Fraction decoded by itself.
    covered: f64,
    /// Parameters; none for the whole buffer.
    params: Option<Vec<String>>,
}

/// Turns a reading into a report entry and compares it with the plan.
fn contribution(
    spec: &RunSpec,
    plan: &Plan,
    buffer: &Buffer<'_>,
    reading: Reading,
) -> Contribution {
    let step = buffer.step.unwrap_or(0);
    let ga = spec.gradient_accumulation_steps;
    let microbatch = buffer.microbatch.unwrap_or(ga - 1);
    let expected = plan.expected(buffer.point, step, microbatch, buffer.rank);
    let as_planned = reading.residual <= reading.tolerance
        && reading
            .weights
            .iter()
            .zip(&expected)
            .all(|(weight, expected)| (weight - expected).abs() <= reading.tolerance);
    let of_step = |step: usize, rank: usize| {
        let first = spec.column(step, rank, 0);
        reading.weights[first..first + ga].iter().copied()
    };
    Contribution {
        point: buffer.point,
        step,
        microbatch: buffer.microbatch,
        rank: buffer.rank,
        params: reading.params,
        weights: (0..spec.world_size).map(|rank| of_step(step, rank).collect()).collect(),
        leftover: (0..spec.world_size)
            .map(|rank| (0..step).flat_map(|earlier| of_step(earlier, rank)).collect())
            .collect(),
        residual: reading.residual,
        tolerance: reading.tolerance,
        covered: reading.covered,
        as_planned,
    }
}

/// The largest value; infinite if one is no number.
pub(super) fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(
        0.0,
        |largest: f64, value| {
            if value.is_nan() { f64::INFINITY } else { largest.max(value) }
        },
    )
}

/// Noise beside a deviation, as a share of it: well above a bf16 rounding (2⁻⁸), well below what
/// foreign data leaves behind.
pub(super) const NOISE_SHARE: f64 = 1.0 / 32.0;

/// A weight within `tolerance` of an integer is that integer.
fn snap(weight: f64, tolerance: f64) -> f64 {
    let integer = weight.round();
    // Adding zero turns -0 into 0.
    if (weight - integer).abs() <= tolerance { integer + 0.0 } else { weight }
}

/// Whether the weights of a step can be read at this point with this optimizer.
fn is_readable(spec: &RunSpec, buffer: &Buffer<'_>) -> bool {
    match buffer.point {
        Point::LocalGradient => false,
        Point::Accumulator | Point::Reduced | Point::BeforeStep | Point::OptimizerInput => true,
        Point::MasterWeights | Point::Parameters => {
            spec.model == Model::Coded
                && spec.optimizer.readable_lr().is_some()
                && buffer.step.is_some()
        }
    }
}
