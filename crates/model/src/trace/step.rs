//! The content of events about the model and the steps of an engine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::named_enum;

/// A parameter of the model, as the engine holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParamInfo {
    /// The dotted name of the parameter.
    pub name: String,
    /// The dimensions of the parameter.
    pub shape: Vec<usize>,
    /// True if the parameter requires a gradient.
    pub trainable: bool,
    /// The ranks that have the parameter, if tensor parallelism leaves it on some ranks only; empty for all ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<usize>,
}

/// The elements of a parameter that differ from the expected values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Differing {
    /// The index of the parameter in flat order.
    pub param: usize,
    /// The number of differing elements.
    pub elements: usize,
    /// The index of the first differing element within the parameter.
    pub first: usize,
}

/// A comparison of one kind of a rank's training state before a checkpoint was saved with the state after the
/// checkpoint was loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StateCompared {
    /// The kind of the state, such as `parameters`, `master weights`, or `optimizer.exp_avg`.
    pub state: String,
    /// The elements of parameters whose state differs; empty for numbers of the whole engine.
    pub differing: Vec<Differing>,
    /// True if the state differs, and each differing element is the saved element rounded to the model's dtype.
    pub rounded: bool,
    /// The first two numbers that differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Unequal>,
}

impl StateCompared {
    /// True if the state after the checkpoint differs from the state before.
    pub fn differs(&self) -> bool {
        self.numbers.is_some()
    }
}

/// A number before and after a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Unequal {
    /// The number before the checkpoint was saved; `None` if it is not finite.
    pub saved: Option<f64>,
    /// The number after the checkpoint was loaded; `None` if it is not finite.
    pub loaded: Option<f64>,
}

named_enum! {
    /// The part of the model that a buffer holds.
    pub enum LayoutName {
        /// The buffer holds every parameter.
        Full = "full",
        /// The buffer holds the partition that this rank owns.
        Partition = "partition",
    }
}

named_enum! {
    /// A phase of an optimizer step.
    pub enum Phase {
        /// The forward of a microbatch.
        Forward = "forward",
        /// The backward of a microbatch, including the gradient hooks.
        Backward = "backward",
        /// The gradients are added to the accumulator.
        Accumulate = "accumulate",
        /// The gradients are reduced at the gradient accumulation boundary.
        Reduce = "reduce",
        /// The inner optimizer steps.
        OptimizerStep = "optimizer-step",
        /// The updated parameters are all-gathered.
        AllGather = "all-gather",
        /// The ranks exchange digests over the engine's own process group.
        Digests = "digests",
    }
}

named_enum! {
    /// The reason why a bucket was flushed.
    pub enum FlushReason {
        /// The next parameter did not fit into the bucket.
        Full = "full",
        /// A parameter larger than the bucket is reduced separately.
        Oversized = "oversized",
        /// The gradient accumulation boundary was reached.
        Boundary = "boundary",
    }
}

named_enum! {
    /// The operation of a collective.
    pub enum CollectiveOp {
        /// All ranks get the sum over the ranks.
        AllReduce = "all-reduce",
        /// All ranks get the concatenation over the ranks.
        AllGather = "all-gather",
        /// All ranks get the data of one rank.
        Broadcast = "broadcast",
        /// One rank gets the sum over the ranks.
        Reduce = "reduce",
        /// Each rank gets a part of the sum over the ranks.
        ReduceScatter = "reduce-scatter",
    }
}
