//! The journey of the gradients in a report: the moments at which buffers were read, and the first departure from the
//! plan.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::trace::Point;

/// The first point of the gradient's journey that is not as planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the journey whose buffer departs from the plan; `None` if a gradient hook or a bucket departs.
    pub point: Option<Point>,
    /// The ranks on which the journey departs from the plan.
    pub ranks: Vec<usize>,
    /// The names of the affected parameters; `None` if all parameters are affected.
    pub params: Option<Vec<String>>,
    /// The number of the bucket flush that departs from the plan; `None` if a buffer or a hook departs.
    pub bucket: Option<usize>,
    /// The function of the engine that makes the buffer; `None` if the function is unknown, or if the buffer was
    /// changed outside of the engine.
    pub function: Option<String>,
    /// True if the gradients of a user's script changed after one backward and before the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside_backward: bool,
    /// The number of stations of the report's `journey` before this departure.
    pub right_before: usize,
}

/// A moment of the gradient's journey at which buffers were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Station {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the journey.
    pub point: Point,
    /// The number of ranks whose buffer was read.
    pub ranks: usize,
    /// The ranks whose buffer is not as planned.
    pub departed: Vec<usize>,
}

/// The norm of one buffer on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Norms {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the gradient's journey.
    pub point: Point,
    /// True if all ranks hold the same bits; `None` at a point where ranks may hold different values.
    pub agree: Option<bool>,
    /// The norms by rank; `None` for a norm that was not observed or is not finite.
    pub norms: Vec<Option<f64>>,
    /// The difference to the norm of rank 0 in percent, by rank; empty if the ranks hold different parts of the buffer.
    pub difference_percent: Vec<Option<f64>>,
}

impl Norms {
    /// The known norms with their ranks, in ascending order of the norms.
    pub fn sorted(&self) -> Vec<(f64, usize)> {
        let known = self.norms.iter().enumerate().filter_map(|(rank, norm)| Some(((*norm)?, rank)));
        let mut sorted: Vec<(f64, usize)> = known.collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        sorted
    }
}

/// The loss and the gradient norms of a step, as a training log would show them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The mean loss over the microbatches of all ranks; `None` if the loss was not observed or is not finite.
    pub loss: Option<f64>,
    /// The global norm of the gradient before clipping, as the engine of rank 0 computed the norm.
    pub gradient_norm: Option<f64>,
    /// The norm of the gradient that the inner optimizers of all ranks consumed together.
    pub input_norm: Option<f64>,
}
