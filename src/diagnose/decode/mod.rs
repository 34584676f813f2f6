//! Contribution weights: which gradients a buffer really holds.
//!
//! For a buffer `b` this finds `w` with `b = 1/(W·GA)·Σ w[r,m]·g[r,m]`: exactly for coded data
//! (`coded`), by least squares otherwise (`dense`).

mod coded;
mod dense;

use crate::report::Contribution;
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
}

impl Decoded {
    /// Whether the optimizer's input could not be read well enough to conclude.
    pub fn refused(&self) -> bool {
        self.smallest_weight_deviation.is_none()
    }
}

/// Reads the weights in every buffer.
pub fn decode(observed: &Observed<'_>, plan: &Plan) -> Decoded {
    match observed.spec.model {
        Model::Coded => coded::decode(observed, plan),
        Model::Mlp => dense::decode(observed, plan),
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
                && matches!(spec.optimizer, crate::spec::Optimizer::Sgd { .. })
                && buffer.step.is_some()
        }
    }
}
