//! The contribution weights in a report: which gradients a buffer holds, and how often.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::trace::Point;

/// The weights `w` with which gradients are contained in a buffer: `b = 1/(W·GA)·Σ w[r,m]·g[r,m]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contribution {
    /// The point of the gradient's journey.
    pub point: Point,
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch, from 0; `None` for a point after the accumulation.
    pub microbatch: Option<usize>,
    /// The rank that holds the buffer.
    pub rank: usize,
    /// The names of the parameters that this entry is about; `None` for all parameters that no other entry of the same
    /// buffer names.
    pub params: Option<Vec<String>>,
    /// `weights[s][m]` is the weight of the gradient of source rank `s` and microbatch `m` of this step; for a clipped
    /// gradient, the weight before clipping.
    pub weights: Vec<Vec<f64>>,
    /// The expected values of `weights`; 0 for a microbatch that does not use the parameters.
    pub expected: Vec<Vec<f64>>,
    /// The weights of gradients of earlier steps, all expected to be 0: one row for each source rank, `GA` columns for
    /// each step, the oldest step first.
    pub leftover: Vec<Vec<f64>>,
    /// The ranges of elements that this entry is about; empty if the entry is about whole parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<Elements>,
    /// All sets of weights that explain the elements, including the set of this entry, if the elements are too few to
    /// decide; empty if the weights are certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible: Vec<Possible>,
    /// The largest part of the buffer that no gradient explains, in units of a weight.
    pub residual: f64,
    /// The bound on the error of a weight; 0 if the weights are exact.
    pub tolerance: f64,
    /// The fraction of the elements that were decoded independently, from 0 to 1.
    pub covered: f64,
    /// True if the buffer is as planned.
    pub as_planned: bool,
    /// Other ranks whose buffers hold the same, as ranges of the first and the last rank. If a rank's own gradients
    /// have special weights, these weights are at the position of each buffer's own rank. Empty up to 64 ranks, because
    /// every rank then has its own entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<[usize; 2]>,
}

impl Contribution {
    /// All ranks whose buffers the entry is about.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        let others = self.also.iter().flat_map(|&[first, last]| first..=last);
        std::iter::once(self.rank).chain(others)
    }

    /// True if the entry is about the buffer of `rank`.
    pub fn is_of(&self, rank: usize) -> bool {
        self.rank == rank || self.also.iter().any(|&[first, last]| (first..=last).contains(&rank))
    }
}

/// A range of consecutive elements of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Elements {
    /// The name of the parameter.
    pub param: String,
    /// The index of the first element within the parameter.
    pub first: usize,
    /// The index after the last element, within the parameter.
    pub end: usize,
}

/// One of several sets of weights that explain the same elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Possible {
    /// The weights of the step's own gradients, as in [`Contribution::weights`].
    pub weights: Vec<Vec<f64>>,
    /// The weights of gradients of earlier steps, as in [`Contribution::leftover`].
    pub leftover: Vec<Vec<f64>>,
}

/// The weights that the target tokens of a microbatch have in the update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MicrobatchTokens {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The rank, from 0.
    pub rank: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of tokens with a weight in the microbatch.
    pub tokens: usize,
    /// The smallest weight of a token, as a multiple of the mean weight in the step.
    pub least: f64,
    /// The largest weight of a token, as a multiple of the mean weight in the step.
    pub most: f64,
    /// The share of the step's total weight that the tokens of the microbatch have together, from 0 to 1.
    pub share: f64,
}
