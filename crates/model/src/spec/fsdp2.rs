//! The settings of PyTorch's `fully_shard` (FSDP2).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::models::params;
use super::plan::Param;
use super::{Engine, Invalid, Model, RunSpec, Shape, SpecRequest};

/// The settings of FSDP2: arguments of `fully_shard` by name, and how the run uses `fully_shard`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fsdp2Options {
    /// True if parameters are freed between forward and backward.
    pub reshard_after_forward: bool,
    /// The number of ranks among which parameters stay sharded between forward and backward (an integer
    /// `reshard_after_forward`); `None` for the shards of the optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards_after_forward: Option<usize>,
    /// True if gradients are reduced in every microbatch, and not only at the boundary (`set_requires_gradient_sync`).
    #[serde(default)]
    pub reduce_every_microbatch: bool,
    /// True if parameters are freed after the backward of every microbatch, and not only at the boundary
    /// (`set_reshard_after_backward`).
    #[serde(default = "yes")]
    pub reshard_after_backward: bool,
    /// The number of groups of ranks that each hold the whole model, sharded within the group (HSDP); 1 for a mesh
    /// of one dimension.
    #[serde(default = "one")]
    pub replicas: usize,
    /// The number of ranks among which every parameter is split as a `DTensor` before it is sharded (tensor
    /// parallelism); 1 for none.
    #[serde(default = "one")]
    pub tensor_parallel: usize,
    /// The dimension along which matrices are sharded (`shard_placement_fn`).
    #[serde(default)]
    pub shard_dimension: usize,
    /// True if gradients are summed over the replicas only at the boundary, and within a replica in every
    /// microbatch (`set_requires_all_reduce`).
    #[serde(default)]
    pub all_reduce_at_boundary: bool,
    /// The divisor of the sum over the ranks (`set_gradient_divide_factor`); `None` for the world size.
    #[serde(default)]
    pub gradient_divide_factor: Option<f64>,
    /// True if collectives only sum, and FSDP2 itself divides (`set_force_sum_reduction_for_comms`).
    #[serde(default)]
    pub force_sum_reduction: bool,
    /// True if a hook of the user's averages gradients over the replicas (`set_all_reduce_hook`), and `fully_shard`
    /// does not know the replicas.
    #[serde(default)]
    pub all_reduce_hook: bool,
    /// True if the parameters are replaced by those of a state dict before the first step
    /// (`load_state_dict(assign=True)`).
    #[serde(default)]
    pub assign_state_dict: bool,
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

impl Fsdp2Options {
    /// The settings that a request asks for.
    pub(super) fn new(request: &SpecRequest) -> Self {
        let asked = request.or_default(Engine::Fsdp2);
        Self {
            reshard_after_forward: asked.reshard_after_forward(),
            shards_after_forward: request.shards_after_forward,
            reduce_every_microbatch: asked.reduce_every_microbatch(),
            reshard_after_backward: asked.reshard_after_backward(),
            replicas: asked.replicas(),
            tensor_parallel: asked.tensor_parallel(),
            shard_dimension: asked.shard_dimension(),
            all_reduce_at_boundary: asked.all_reduce_at_boundary(),
            gradient_divide_factor: request.gradient_divide_factor,
            force_sum_reduction: asked.force_sum_reduction(),
            all_reduce_hook: asked.all_reduce_hook(),
            assign_state_dict: asked.assign_state_dict(),
        }
    }
}

impl Fsdp2Options {
    /// The number of ranks among which a parameter, or a part of a parameter under tensor parallelism, is sharded.
    pub(super) fn shards(self, world_size: usize) -> usize {
        (world_size / self.replicas / self.tensor_parallel).max(1)
    }
}

/// True if `--shard-dimension` applies to the parameter: a matrix with at least as many columns as rows.
pub(super) fn is_wide(param: &Param) -> bool {
    matches!(param.shape[..], [rows, columns] if columns >= rows)
}

/// Refuses settings of FSDP2 that contradict each other, or that CPU ranks do not support.
pub(super) fn check(spec: &RunSpec) -> Vec<Invalid> {
    let Some(fsdp2) = spec.fsdp2() else { return Vec::new() };
    let replicas = fsdp2.replicas;
    let at_boundary = fsdp2.all_reduce_at_boundary;
    let parts = fsdp2.tensor_parallel;
    let over_average = fsdp2.gradient_divide_factor.map(|divisor| divisor / spec.world_size as f64);
    let divisor =
        || format!("--gradient-divide-factor {}", fsdp2.gradient_divide_factor.unwrap_or_default());
    let shards = fsdp2.shards(spec.world_size);
    let kept = fsdp2.shards_after_forward;
    let rows = [
        (
            kept.is_some() && !fsdp2.reshard_after_forward,
            "--shards-after-forward with --reshard-after-forward false".to_owned(),
            "parameters stay whole between forward and backward; drop one of the two flags",
        ),
        (
            kept.is_some_and(|kept| kept < 2 || kept >= shards || !shards.is_multiple_of(kept)),
            format!("--shards-after-forward {} with {shards} shards", kept.unwrap_or_default()),
            "FSDP2 allows divisors of the number of shards other than 1 and the number itself; use --nproc-per-node 4 \
             --shards-after-forward 2",
        ),
        (
            replicas > 1 && !spec.world_size.is_multiple_of(replicas),
            format!("--replicas {replicas} with {} ranks", spec.world_size),
            "each replica has the same number of ranks; use a number that divides --nproc-per-node",
        ),
        (
            parts > 1
                && spec.world_size.is_multiple_of(replicas)
                && !spec.world_size.is_multiple_of(replicas * parts),
            format!(
                "--tensor-parallel {parts} with {} ranks and --replicas {replicas}",
                spec.world_size
            ),
            "each part of a replica is on the same number of ranks; use a number of ranks that is a multiple of their \
             product",
        ),
        (
            !parts.is_power_of_two(),
            format!("--tensor-parallel {parts}"),
            "codes stay exact only if this number is a power of two",
        ),
        (
            parts > 1 && spec.model == Model::Mlp,
            "--tensor-parallel with --model mlp".to_owned(),
            "only the coded model can be split; drop one of the two flags",
        ),
        (
            fsdp2.shard_dimension == 1
                && params(spec).iter().any(|it| is_wide(it) && !it.shape[1].is_multiple_of(shards)),
            format!("--shard-dimension 1 with {} ranks", spec.world_size),
            "FSDP2 needs the same number of columns on each rank; use --model coded, or a number of ranks that divides 64",
        ),
        (
            at_boundary && replicas == 1,
            "--all-reduce-at-boundary".to_owned(),
            "a single replica has no other replica to sum with; add --replicas 2",
        ),
        (
            fsdp2.all_reduce_hook && replicas == 1,
            "--all-reduce-hook".to_owned(),
            "a single replica has no other replica to average with; add --replicas 2",
        ),
        (
            fsdp2.all_reduce_hook && (at_boundary || over_average.is_some()),
            "--all-reduce-hook with --all-reduce-at-boundary or --gradient-divide-factor"
                .to_owned(),
            "with the hook, fully_shard does not sum over the replicas; drop the hook or the other flag",
        ),
        (
            at_boundary && !fsdp2.reduce_every_microbatch,
            "--all-reduce-at-boundary".to_owned(),
            "no gradient is reduced before the boundary; add --reduce-every-microbatch true",
        ),
        (
            over_average.is_some_and(|ratio| !(ratio > 0.0 && ratio.log2().fract() == 0.0)),
            divisor(),
            "codes stay exact only if this divisor is the number of ranks times a power of two",
        ),
        (
            over_average.is_some() && !fsdp2.force_sum_reduction && replicas < spec.world_size,
            divisor(),
            "FSDP2 needs a multiplication before the sum, which NCCL can do and Gloo cannot; add --force-sum-reduction true",
        ),
        (
            fsdp2.assign_state_dict && spec.has_shape(Shape::Tied),
            "--assign-state-dict with --shape tied".to_owned(),
            "load_state_dict(assign=True) makes a parameter for each name, which unties tied parameters; drop one of \
             the two flags",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}
