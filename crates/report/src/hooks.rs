//! The gradient hooks and the bucket flushes of a run in a report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::trace::FlushReason;

/// A flush of a bucket: the engine reduced the bucket's gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flush {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of the flush within the step, from 0.
    pub flush: usize,
    /// The ranks that flushed the same bucket for the same reason.
    pub ranks: Vec<usize>,
    /// The reason for the flush.
    pub reason: FlushReason,
    /// The number of elements in the bucket.
    pub elements: usize,
    /// The capacity of the bucket, in elements.
    pub capacity: usize,
    /// The names of the parameters in the bucket.
    pub params: Vec<String>,
}

/// The gradient hooks that fired, compared with the nodes of the autograd graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hooks {
    /// True if firings of hooks were observed; if false, as in a dataflow without hooks, `fired` is `None` everywhere.
    pub observed: bool,
    /// The number of `AccumulateGrad` nodes and of hooks that fired, for each step, microbatch and rank.
    pub counts: Vec<HookCount>,
    /// The names of the model's parameters, in flat order; the lists in `firings` have the same order.
    #[serde(default)]
    pub params: Vec<String>,
    /// The graph nodes and the hook firings of each backward, parameter by parameter.
    #[serde(default)]
    pub firings: Vec<Firings>,
}

/// The hooks of one backward, parameter by parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Firings {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of this backward within its microbatch, from 0.
    #[serde(default)]
    pub part: usize,
    /// The ranks on which the nodes and firings were the same.
    pub ranks: Vec<usize>,
    /// For each parameter, true if the graph has an `AccumulateGrad` node for the parameter.
    pub reached: Vec<bool>,
    /// For each parameter, the number of gradients that autograd delivered; `None` if delivery was not watched.
    pub arrived: Option<Vec<u32>>,
    /// For each parameter, the number of times that the hook fired; `None` if firings were not observed.
    pub fired: Option<Vec<u32>>,
}

/// The hooks of one backward on one rank, counted over all parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HookCount {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of this backward within its microbatch, from 0.
    #[serde(default)]
    pub part: usize,
    /// The rank, from 0.
    pub rank: usize,
    /// The number of `AccumulateGrad` nodes in the graph.
    pub accumulate_grad_nodes: usize,
    /// The number of hooks that fired, over all parameters; `None` if firings were not observed.
    pub fired: Option<usize>,
    /// The names of the parameters that the graph reaches but whose hook did not fire.
    pub silent: Vec<String>,
}
