//! The settings of PyTorch's `FullyShardedDataParallel` (FSDP1).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Dtype, Engine, Invalid, Optimizer, RunSpec, Shape, SpecRequest, named_enum};

named_enum! {
    /// The sharding strategy of `FullyShardedDataParallel`.
    pub enum ShardingStrategy {
        /// Parameters are sharded, and gathered again for the backward.
        FullShard = "full-shard",
        /// Parameters stay whole between forward and backward.
        ShardGradOp = "shard-grad-op",
        /// Every rank holds the whole model, as under DDP.
        NoShard = "no-shard",
        /// Several replicas, each sharded as with `full-shard`.
        HybridShard = "hybrid-shard",
        /// Several replicas, each sharded as with `shard-grad-op` (`_HYBRID_SHARD_ZERO2`).
        HybridShardZero2 = "hybrid-shard-zero2",
    }
}

impl ShardingStrategy {
    /// True if the strategy shards within groups of ranks, and averages gradients over the groups.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Self::HybridShard | Self::HybridShardZero2)
    }
}

/// The settings of FSDP1: arguments of `FullyShardedDataParallel` by name, and how the run uses the class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fsdp1Options {
    /// The sharding strategy.
    pub sharding_strategy: ShardingStrategy,
    /// True if the optimizer holds the model's own parameters, and not the flat parameters.
    pub use_orig_params: bool,
    /// True if the optimizer gets gradients in the dtype of the reduction (`MixedPrecision.keep_low_precision_grads`).
    pub keep_low_precision_grads: bool,
    /// True if gradients are reduced in every microbatch, and not only at the boundary (without `no_sync`).
    pub reduce_every_microbatch: bool,
    /// The number of groups of ranks that each hold the whole model, sharded within the group; 1 unless the strategy is
    /// hybrid.
    pub replicas: usize,
    /// True if the parameters are replaced by those of a state dict before the first step.
    pub assign_state_dict: bool,
}

impl Fsdp1Options {
    /// The settings that a request asks for.
    pub(super) fn new(request: &SpecRequest) -> Self {
        let asked = request.or_default(Engine::Fsdp1);
        Self {
            sharding_strategy: asked.sharding_strategy(),
            use_orig_params: asked.use_orig_params(),
            keep_low_precision_grads: asked.keep_low_precision_grads(),
            reduce_every_microbatch: asked.reduce_every_microbatch(),
            replicas: asked.replicas(),
            assign_state_dict: asked.assign_state_dict(),
        }
    }
}

/// Refuses settings of FSDP1 that contradict each other.
pub(super) fn check(spec: &RunSpec) -> Vec<Invalid> {
    let Some(fsdp1) = spec.fsdp1() else { return Vec::new() };
    let (replicas, strategy) = (fsdp1.replicas, fsdp1.sharding_strategy);
    let rows = [
        (
            !spec.world_size.is_multiple_of(replicas),
            format!("--replicas {replicas} with {} ranks", spec.world_size),
            "each replica has the same number of ranks; use a number that divides --nproc-per-node",
        ),
        (
            replicas > 1 && !strategy.is_hybrid(),
            format!("--replicas {replicas} with --sharding-strategy {strategy}"),
            "only hybrid strategies have several replicas; add --sharding-strategy hybrid-shard",
        ),
        (
            !fsdp1.use_orig_params && spec.parameter_groups == Some(2),
            "--parameter-groups 2".to_owned(),
            "a flat parameter belongs to one group as a whole; add --use-orig-params true",
        ),
        (
            !fsdp1.use_orig_params && spec.has_shape(Shape::FrozenAlternating),
            format!("--shape {}", Shape::FrozenAlternating),
            "a flat parameter is frozen as a whole; add --use-orig-params true",
        ),
        (
            fsdp1.keep_low_precision_grads
                && spec.narrowest_comm_dtype() != Dtype::Fp32
                && matches!(spec.optimizer, Optimizer::Adamw { .. }),
            "--keep-low-precision-grads with --optimizer adamw".to_owned(),
            "torch's Adam refuses gradients in another dtype than its parameters, which are fp32; use --optimizer sgd",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}
