//! Contribution weights as the report has them: which gradients a buffer holds, and how often.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::trace::Point;

/// Weights `w` with which gradients are contained in a buffer: `b = 1/(W·GA)·Σ w[r,m]·g[r,m]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contribution {
    /// Point of the gradient's journey.
    pub point: Point,
    /// Optimizer step.
    pub step: usize,
    /// Microbatch, for points inside the accumulation.
    pub microbatch: Option<usize>,
    /// Rank whose buffer this is.
    pub rank: usize,
    /// Parameters concerned; none for all that no other entry of the same buffer names.
    pub params: Option<Vec<String>>,
    /// `weights[s][m]`: weight of source rank `s`, microbatch `m` of this step. For a gradient that
    /// was clipped, the weight before clipping.
    pub weights: Vec<Vec<f64>>,
    /// Expected values of `weights`. A microbatch that does not use a parameter has no gradient
    /// there.
    pub expected: Vec<Vec<f64>>,
    /// Weights of gradients of earlier steps, one row for each source rank like `weights`, oldest
    /// step first: `GA` columns a step. Expected 0.
    pub leftover: Vec<Vec<f64>>,
    /// Runs of elements concerned, where it is about parts of parameters; none where it is about whole ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<Elements>,
    /// All weights that explain the elements, those of this entry among them, where the elements are too few to
    /// tell. Empty where the weights are certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible: Vec<Possible>,
    /// Largest part of the buffer that no gradient explains, in units of a weight.
    pub residual: f64,
    /// Bound on the error of a weight; 0 where weights are exact.
    pub tolerance: f64,
    /// Fraction of the elements that were decoded by themselves.
    pub covered: f64,
    /// True if the buffer is what the plan says.
    pub as_planned: bool,
    /// Other ranks whose buffers hold the same, in runs: first and last. Where a rank's own
    /// gradients have other weights than those of other ranks, each buffer has its own rank's in
    /// that place. Empty where every rank has an entry, as it has up to 64 ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<[usize; 2]>,
}

impl Contribution {
    /// Every rank whose buffer this is about.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        let others = self.also.iter().flat_map(|&[first, last]| first..=last);
        std::iter::once(self.rank).chain(others)
    }

    /// True if this is about the buffer of `rank`.
    pub fn is_of(&self, rank: usize) -> bool {
        self.rank == rank || self.also.iter().any(|&[first, last]| (first..=last).contains(&rank))
    }
}

/// A run of consecutive elements of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Elements {
    /// Name of the parameter.
    pub param: String,
    /// Index of the first element in the parameter.
    pub first: usize,
    /// Index after the last element.
    pub end: usize,
}

/// Weights that explain some elements, among others that do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Possible {
    /// As [`Contribution::weights`].
    pub weights: Vec<Vec<f64>>,
    /// As [`Contribution::leftover`].
    pub leftover: Vec<Vec<f64>>,
}
