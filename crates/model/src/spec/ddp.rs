//! The settings of PyTorch's `DistributedDataParallel`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Dtype, Engine, Invalid, Model, RunSpec, Shape, SpecRequest, named_enum};

named_enum! {
    /// A communication hook for DDP that comes with PyTorch (`torch.distributed.algorithms.ddp_comm_hooks`).
    pub enum CommHook {
        /// No hook: the reducer's own all-reduce.
        None = "none",
        /// The hook `fp16_compress_hook`
        Fp16Compress = "fp16-compress",
        /// The hook `bf16_compress_hook`
        Bf16Compress = "bf16-compress",
        /// The hook `allreduce_hook`
        AllReduce = "all-reduce",
        /// `powerSGD_hook`, set to compress nothing: from the third step on, the hook reduces all tensors uncompressed
        PowerSgd = "power-sgd",
        /// `powerSGD_hook` with an approximation of the full rank of each matrix, from the third step on
        PowerSgdFullRank = "power-sgd-full-rank",
        /// `post_localSGD_hook`, whose local steps begin after the last step of the run
        PostLocalSgd = "post-local-sgd",
    }
}

impl CommHook {
    /// The dtype in which the gradients of a model in `dtype` are communicated.
    pub const fn dtype(self, dtype: Dtype) -> Dtype {
        match self {
            CommHook::Fp16Compress => Dtype::Fp16,
            CommHook::Bf16Compress => Dtype::Bf16,
            CommHook::None
            | CommHook::AllReduce
            | CommHook::PowerSgd
            | CommHook::PowerSgdFullRank
            | CommHook::PostLocalSgd => dtype,
        }
    }

    /// True if the hook is `powerSGD_hook`.
    pub fn is_power_sgd(self) -> bool {
        matches!(self, Self::PowerSgd | Self::PowerSgdFullRank)
    }
}

named_enum! {
    /// The parameters that DDP keeps out of its buckets and reduces together in one buffer as soon as the gradient
    /// of another parameter is ready (`delay_all_reduce_named_params`, `param_to_hook_all_reduce`).
    pub enum DelayedParameters {
        /// No parameter.
        None = "none",
        /// The last half of the parameters, as in DDP: the optimizer steps whether or not the reduction has ended.
        Unawaited = "unawaited",
        /// The last half of the parameters, with a barrier before the optimizer steps.
        Awaited = "awaited",
    }
}

named_enum! {
    /// The backend of `torch.compile` for a model under `DistributedDataParallel`, whose graph is split where
    /// buckets end (`DDPOptimizer` in `_dynamo/backends/distributed.py`).
    pub enum Compile {
        /// No compilation.
        None = "none",
        /// The graph that TorchDynamo finds, run as it is.
        Eager = "eager",
        /// The graph of TorchDynamo with its backward, traced by AOTAutograd.
        AotEager = "aot-eager",
        /// The graph and its backward as kernels of TorchInductor, which needs a C++ compiler.
        Inductor = "inductor",
    }
}

named_enum! {
    /// The optimizer that steps during backward, with the gradients of a bucket as soon as the bucket is reduced.
    pub enum OverlappedOptimizer {
        /// No such optimizer: the training loop calls the optimizer after backward.
        None = "none",
        /// An optimizer for each parameter (`_apply_optimizer_in_backward`)
        InBackward = "in-backward",
        /// A functional optimizer in a communication hook (`DistributedDataParallel._register_fused_optim`)
        Fused = "fused",
    }
}

/// The settings of `DistributedDataParallel`, named after its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DdpOptions {
    /// The capacity of a bucket, in MiB.
    pub bucket_cap_mb: f64,
    /// True if DDP looks for parameters that a loss does not reach.
    pub find_unused_parameters: bool,
    /// True if DDP is promised that the graph is the same in every step.
    pub static_graph: bool,
    /// True if gradients are views of the buckets.
    pub gradient_as_bucket_view: bool,
    /// The communication hook.
    pub comm_hook: CommHook,
    /// The parameters that are reduced outside of the buckets: none, or the last half.
    #[serde(default = "no_parameters")]
    pub delayed_parameters: DelayedParameters,
    /// The backend of `torch.compile`.
    #[serde(default = "not_compiled")]
    pub compile: Compile,
    /// The optimizer that steps during backward, if any.
    #[serde(default = "no_optimizer")]
    pub overlapped_optimizer: OverlappedOptimizer,
    /// The number of ranks among which every parameter is split; 1 for none. The ranks that hold the same parts are
    /// the process group of DDP.
    #[serde(default = "one")]
    pub tensor_parallel: usize,
}

/// The value for traces that are older than the setting.
fn no_parameters() -> DelayedParameters {
    DelayedParameters::None
}

fn not_compiled() -> Compile {
    Compile::None
}

fn no_optimizer() -> OverlappedOptimizer {
    OverlappedOptimizer::None
}

fn one() -> usize {
    1
}

impl DdpOptions {
    /// The settings that a request asks for, for a model with these shapes.
    pub(super) fn new(request: &SpecRequest, shapes: &[Shape]) -> Self {
        let asked = request.or_default(Engine::Ddp);
        Self {
            // If not requested, the capacity is filled in last, because the default follows from the model.
            bucket_cap_mb: request.bucket_cap_mb.unwrap_or_default(),
            find_unused_parameters: request
                .find_unused_parameters
                .unwrap_or_else(|| shapes.iter().any(|shape| shape.leaves_unused())),
            static_graph: asked.static_graph(),
            gradient_as_bucket_view: asked.gradient_as_bucket_view(),
            comm_hook: asked.comm_hook(),
            delayed_parameters: asked.delayed_parameters(),
            compile: asked.compile(),
            overlapped_optimizer: asked.overlapped_optimizer(),
            tensor_parallel: asked.tensor_parallel(),
        }
    }
}

/// Refuses settings of DDP that contradict the accumulation or the shapes of the run.
pub(super) fn check(spec: &RunSpec) -> Vec<Invalid> {
    let Some(ddp) = spec.ddp() else { return Vec::new() };
    let mut problems = match ddp.delayed_parameters {
        DelayedParameters::None => Vec::new(),
        DelayedParameters::Unawaited | DelayedParameters::Awaited => check_delayed(spec, ddp),
    };
    problems.extend(check_approximation(spec, ddp.comm_hook));
    problems.extend(check_overlapped(spec, ddp));
    problems.extend(check_parts(spec, ddp));
    if !ddp.static_graph {
        return problems;
    }
    if spec.gradient_accumulation_steps > 1 || spec.has_shape(Shape::SeveralBackwards) {
        // `expect_autograd_hooks_ INTERNAL ASSERT FAILED` in reducer.cpp, seen with torch 2.11 and
        // 2.15: the first backward enqueues a reduction though its forward did not prepare for one.
        problems.push(Invalid::contradiction(
            "--static-graph with gradient accumulation",
            "DDP learns the graph in the first backward and reduces gradients there, which fails under \
             no_sync; use --ga 1",
        ));
    }
    for shape in [Shape::UnusedAlternating, Shape::FrozenAlternating] {
        if spec.has_shape(shape) {
            problems.push(Invalid::contradiction(
                format!("--static-graph with --shape {shape}"),
                "--static-graph promises the same graph in every step, but this shape changes the graph; \
                 drop one of the two flags",
            ));
        }
    }
    problems
}

/// Refuses settings with which the error of an approximation by PowerSGD has no bound.
fn check_approximation(spec: &RunSpec, hook: CommHook) -> Vec<Invalid> {
    let rows = [
        (
            spec.dtype != Dtype::Fp32 || spec.model != Model::Coded,
            "--dtype or --model",
            "its error has a bound only for fp32 and the coded model; use --dtype fp32 --model coded",
        ),
        (
            spec.steps < 3,
            "--steps",
            "PowerSGD compresses nothing in the first two steps; use --steps 4",
        ),
        (
            spec.parameters.is_some(),
            "--parameters",
            "the matrices of a large model have a higher rank than the approximation; leave out --parameters",
        ),
    ];
    let is_one = hook == CommHook::PowerSgdFullRank;
    let refused = rows.into_iter().filter(|(refused, _, _)| is_one && *refused);
    let asked = |other| format!("--comm-hook {hook} with {other}");
    refused.map(|(_, other, reason)| Invalid::contradiction(asked(other), reason)).collect()
}

/// Refuses settings that an optimizer during backward does not support.
fn check_overlapped(spec: &RunSpec, ddp: DdpOptions) -> Vec<Invalid> {
    let optimizer = ddp.overlapped_optimizer;
    if optimizer == OverlappedOptimizer::None {
        return Vec::new();
    }
    let fused = optimizer == OverlappedOptimizer::Fused;
    let several = spec.gradient_accumulation_steps > 1 || spec.has_shape(Shape::SeveralBackwards);
    let rows = [
        (
            fused && several,
            "several backwards per step",
            "DDP does not support no_sync with a fused optimizer; use --ga 1",
        ),
        (
            ddp.comm_hook != CommHook::None,
            "--comm-hook",
            "DDP has a single communication hook, which the optimizer takes; use --comm-hook none",
        ),
        (
            spec.has_shape(Shape::LateNoSync) || spec.has_shape(Shape::Unmanaged),
            "--shape late-no-sync or unmanaged",
            "with these shapes DDP reduces another microbatch than the last one, after which the optimizer would step; \
             drop one of the two flags",
        ),
        (
            ddp.delayed_parameters != DelayedParameters::None,
            "--delayed-parameters",
            "delayed parameters are in no bucket, so that the optimizer would not step with them; use \
             --delayed-parameters none",
        ),
        (
            spec.gradient_clipping > 0.0,
            "--gradient-clipping",
            "the optimizer steps before the norm of all gradients is known; leave out --gradient-clipping",
        ),
        (
            spec.has_shape(Shape::WarmUp),
            "--shape warm-up",
            "a scheduler needs a torch optimizer; leave out --overlapped-optimizer",
        ),
        (
            spec.parameter_groups == Some(2),
            "--parameter-groups 2",
            "the optimizer has a single set of options for all parameters; leave out --parameter-groups",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    let asked = |other| format!("--overlapped-optimizer {optimizer} with {other}");
    refused.map(|(_, other, reason)| Invalid::contradiction(asked(other), reason)).collect()
}

/// Refuses settings that do not go with parameters that are split among ranks.
fn check_parts(spec: &RunSpec, ddp: DdpOptions) -> Vec<Invalid> {
    let parts = ddp.tensor_parallel;
    let rows = [
        (
            !spec.world_size.is_multiple_of(parts),
            format!("--tensor-parallel {parts} with {} ranks", spec.world_size),
            "each part is on the same number of ranks; use a number that divides --nproc-per-node",
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
            parts > 1 && spec.gradient_clipping > 0.0,
            "--tensor-parallel with --gradient-clipping".to_owned(),
            "each rank has only the norm of its own parts, and the training loop must add up these norms; drop one of \
             the two flags",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}

/// Refuses settings that DDP's delayed parameters do not support. Their gradients are in an fp32 buffer, which is
/// reduced in each backward, also under `no_sync`, as soon as one parameter has its gradient
/// (`_delayed_all_reduce_hook` in `nn/parallel/distributed.py`).
fn check_delayed(spec: &RunSpec, ddp: DdpOptions) -> Vec<Invalid> {
    let several = spec.gradient_accumulation_steps > 1;
    let rows = [
        (
            spec.dtype != Dtype::Fp32,
            "--dtype",
            "delayed parameters have fp32 gradients; use --dtype fp32",
        ),
        (
            ddp.bucket_cap_mb.fract() != 0.0,
            "--bucket-cap-mb",
            "with delayed parameters, DDP takes only whole numbers; use --bucket-cap-mb 1",
        ),
        (
            ddp.compile != Compile::None,
            "--compile",
            "a compiled graph hands over gradients in an order of its own, so delayed parameters would be reduced too \
             early; use --compile none",
        ),
        (several, "--ga", "delayed parameters are reduced in every microbatch; use --ga 1"),
        (
            ddp.comm_hook != CommHook::None,
            "--comm-hook",
            "the hook does not reduce delayed parameters; use --comm-hook none",
        ),
    ];
    let settings = rows.into_iter().filter(|(refused, _, _)| *refused);
    let settings = settings.map(|(_, flag, reason)| (flag.to_owned(), reason));
    let shapes = spec.shapes.iter().filter(|shape| !shape.allows_delayed_parameters());
    let shapes = shapes.map(|shape| {
        let reason =
            "delayed parameters are reduced once per backward, when the first parameter has its gradient";
        (format!("--shape {shape}"), reason)
    });
    let refused = settings.chain(shapes);
    let flag = format!("--delayed-parameters {}", ddp.delayed_parameters);
    let asked = |(other, reason)| Invalid::contradiction(format!("{flag} with {other}"), reason);
    refused.map(asked).collect()
}
