//! Settings that only some engines have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Dtype, named_enum};

named_enum! {
    /// Where the optimizer's states live.
    pub enum Offload {
        /// With the model.
        None = "none",
        /// In the memory of the host (DeepSpeed's `offload_optimizer`).
        Cpu = "cpu",
    }
}

named_enum! {
    /// How much of the engine is observed.
    pub enum Observation {
        /// Every point of the gradient's journey that the engine lets be seen.
        Full = "full",
        /// Only the parameters after each step: nothing is wrapped, nothing is hooked.
        Outcome = "outcome",
    }
}

named_enum! {
    /// DDP's communication hooks that come with PyTorch
    /// (`torch.distributed.algorithms.ddp_comm_hooks.default_hooks`).
    pub enum CommHook {
        /// None: the reducer's own all-reduce.
        None = "none",
        /// `fp16_compress_hook`
        Fp16Compress = "fp16-compress",
        /// `bf16_compress_hook`
        Bf16Compress = "bf16-compress",
    }
}

impl CommHook {
    /// Dtype of the wire for a model in `dtype`.
    pub const fn dtype(self, dtype: Dtype) -> Dtype {
        match self {
            CommHook::None => dtype,
            CommHook::Fp16Compress => Dtype::Fp16,
            CommHook::Bf16Compress => Dtype::Bf16,
        }
    }
}

/// Scale of the loss of an fp16 model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum LossScale {
    /// Always the same.
    Static {
        /// The scale.
        scale: f64,
    },
    /// Halved when a gradient overflows, doubled when none did for long.
    Dynamic {
        /// The first scale is 2 to this power (DeepSpeed's `initial_scale_power`).
        initial_power: u32,
    },
}

impl LossScale {
    /// Dynamic, and low enough that coded gradients of many ranks do not overflow.
    pub const DEFAULT: LossScale = LossScale::Dynamic { initial_power: 6 };

    /// The first scale.
    pub fn initial(self) -> f64 {
        match self {
            LossScale::Static { scale } => scale,
            LossScale::Dynamic { initial_power } => f64::from(initial_power).exp2(),
        }
    }
}

/// Settings of `DistributedDataParallel`, by the names of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DdpOptions {
    /// Capacity of a bucket in MiB.
    pub bucket_cap_mb: f64,
    /// Whether parameters that a loss does not reach are looked for.
    pub find_unused_parameters: bool,
    /// Whether the graph is the same in every step.
    pub static_graph: bool,
    /// Whether gradients are views of the buckets.
    pub gradient_as_bucket_view: bool,
    /// Communication hook.
    pub comm_hook: CommHook,
}

/// Settings of `fully_shard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fsdp2Options {
    /// Whether parameters are freed between forward and backward.
    pub reshard_after_forward: bool,
}
