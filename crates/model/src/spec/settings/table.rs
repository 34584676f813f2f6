//! The table of all settings. A new setting needs a new row, and an engine that uses it.

use std::num::ParseIntError;
use std::thread::available_parallelism;

use bytesize::ByteSize;
use serde_json::Value as Json;

use super::row::About::How;
use super::row::Reduction::{Keep, KeepAlways};
use super::row::{ConfigKey, Setting, SettingRow, configured, is_passed_on};
use super::value::Slot;
use crate::spec::checks::MIB;
use crate::spec::deepspeed::{Member, write_dtype, write_loss_scale};
use crate::spec::recording::DEFAULT_BUDGET;
use crate::spec::{
    BackendChoice, CommHook, Compile, DataParallel, Dataflow, DelayedParameters, DeviceChoice,
    Dtype, Engine, Fault, Gpus, Invalid, LossScale, Model, NormType, Observation, Offload,
    Optimizer, OverlappedOptimizer, Schedule, SequenceGroups, Shape, ShardingStrategy,
};

/// The engines that partition as ZeRO does, and use the setting names of DeepSpeed's configuration.
const ZERO: &[Engine] = &[Engine::Native, Engine::DeepSpeed];
const WITH_LOSS_SCALE: &[Engine] = &[Engine::Native, Engine::DeepSpeed, Engine::Ddp, Engine::Fsdp2];

/// The engines whose training loop calls torch's `clip_grad_norm_`.
const CLIPPED_BY_TORCH: &[Engine] =
    &[Engine::Ddp, Engine::Fsdp1, Engine::Fsdp2, Engine::ZeroRedundancy];

/// The engines that can keep the state of the optimizer in the host's memory.
const OFFLOADING: &[Engine] = &[Engine::Native, Engine::DeepSpeed, Engine::Fsdp2];

/// The engines FSDP1 and FSDP2, PyTorch's fully sharded data parallelism.
const FSDP: &[Engine] = &[Engine::Fsdp1, Engine::Fsdp2];

/// The engines whose scripts save and load checkpoints.
const RESUMED: &[Engine] =
    &[Engine::DeepSpeed, Engine::Ddp, Engine::Fsdp1, Engine::Fsdp2, Engine::ZeroRedundancy];

/// Each of the following lists has a single engine.
const NATIVE: &[Engine] = &[Engine::Native];
const DEEPSPEED: &[Engine] = &[Engine::DeepSpeed];
const DDP: &[Engine] = &[Engine::Ddp];
const FSDP1: &[Engine] = &[Engine::Fsdp1];
const FSDP2: &[Engine] = &[Engine::Fsdp2];
const PIPELINE: &[Engine] = &[Engine::Pipeline];

/// Declares the settings. A row begins with its help text, its flag, its field and the type of the field;
/// `= |engine| …` is a default that depends only on the engine. The braces hold fields of [`SettingRow`].
macro_rules! settings {
    ($(
        $(#[doc = $help:literal])+
        $flag:literal $name:ident: $slot:ty $(= $default:expr)? , { $($what:ident: $value:expr),* $(,)? }
    )+) => {
        /// The settings that the command line, the environment and files request. A value that none of them gives
        /// is `None`.
        #[derive(Clone, Debug, Default)]
        pub struct SpecRequest {
            $($(#[doc = $help])+ pub $name: $slot,)+
            /// True to start one rank for each GPU: `--nproc-per-node gpu`.
            pub rank_per_gpu: bool,
            /// The parts of CUDA that the engine finds on the machine; `None` if zprobe did not look for them.
            pub gpus: Option<Gpus>,
            /// The content of the file that `--deepspeed-config` names.
            pub deepspeed_config: Option<Json>,
        }

        /// All settings, by name.
        pub(in crate::spec) struct Table {
            $(pub(in crate::spec) $name: SettingRow<$slot>,)+
        }

        /// The rows of all settings.
        pub(in crate::spec) static TABLE: Table = Table {
            $($name: SettingRow {
                $(default: Some($default),)?
                $($what: $value,)*
                ..SettingRow::<$slot>::new(
                    $flag,
                    concat!($($help),+),
                    |request| &request.$name,
                    |request| &mut request.$name,
                )
            },)+
        };

        /// All settings, in the order in which people type them. A setting comes after all settings whose defaults
        /// depend on it.
        pub static ALL: &[&dyn Setting] = &[$(&TABLE.$name),+];

        impl OrDefault<'_> {
            $($(
                /// The requested value, or else the default.
                pub fn $name(&self) -> <$slot as Slot>::Item {
                    let default: fn(Engine) -> <$slot as Slot>::Item = $default;
                    let asked = self.request.$name.values().first().cloned();
                    asked.unwrap_or_else(|| default(self.engine))
                }
            )?)+
        }
    };
}

/// A request in which settings that are not set have their defaults, if the defaults depend only on the engine.
pub struct OrDefault<'a> {
    request: &'a SpecRequest,
    engine: Engine,
}

impl SpecRequest {
    /// The request with the defaults of an engine.
    pub fn or_default(&self, engine: Engine) -> OrDefault<'_> {
        OrDefault { request: self, engine }
    }
}

settings! {
    /// Engine under test
    "--engine" engine: Option<Engine> = |_| Engine::default(), {
        heading: "Engine", always_said: true, reduction: Keep, about: How,
        default_words: "the environment's",
        said: |spec| Some(spec.engine()),
    }

    /// ZeRO stage
    "--stage" stage: Option<u8> = |engine| engine.traits().staging.default(), {
        heading: "Engine", placeholder: "0|1|2|3", engines: ZERO, always_said: true,
        check: |_, stage| if *stage > 3 { Err(Invalid::NoSuchStage(*stage)) } else { Ok(()) },
        key: ConfigKey::At("zero_optimization.stage"),
        said: |spec| Some(spec.stage),
    }

    /// Microbatches per optimizer step (gradient accumulation steps)
    "--ga" gradient_accumulation_steps: Option<usize> = |_| 4, {
        heading: "Engine", placeholder: "N", alias: "gradient-accumulation-steps",
        always_said: true, reduction: Keep,
        check: up_to::<MOST, _>,
        key: ConfigKey::AlwaysAt("gradient_accumulation_steps"),
        said: |spec| Some(spec.gradient_accumulation_steps),
    }

    /// Ranks: a number, `gpu` (one per GPU) or `cpu` (one per core)
    "--nproc-per-node" world_size: Option<usize>, {
        heading: "Engine", placeholder: "N|gpu|cpu", alias: "world-size", reduction: Keep,
        default_words: "on CUDA one per GPU, otherwise 2",
        words: Some(ranks),
        check: up_to::<MOST, _>,
        said: |spec| Some(spec.world_size),
    }

    /// Device of the ranks; `auto` is `cuda` if the engine can use a GPU
    "--device" device: Option<DeviceChoice> = |_| DeviceChoice::Auto, {
        heading: "Engine", reduction: KeepAlways,
    }

    /// Backend of the collectives; `auto` is `nccl` if each rank has a GPU of its own, otherwise `gloo`
    "--backend" backend: Option<BackendChoice> = |_| BackendChoice::Auto, {
        heading: "Engine", reduction: KeepAlways,
    }

    /// Dtype of the model
    "--dtype" dtype: Option<Dtype> = |_| Dtype::Bf16, {
        heading: "Engine",
        key: ConfigKey::Written("bf16.enabled, fp16.enabled", write_dtype),
        said: |spec| Some(spec.dtype),
    }

    /// Dtype in which microbatches are accumulated
    "--grad-accum-dtype" grad_accum_dtype: Option<Dtype>, {
        heading: "Engine", placeholder: "DTYPE", engines: ZERO,
        advice: "ddp and fsdp1 accumulate in --dtype, fsdp2 in --comm-dtype",
        default_words: "fp32; ddp and fsdp1: the model's dtype",
        key: ConfigKey::At("data_types.grad_accum_dtype"),
        said: |spec| Some(spec.grad_accum_dtype),
    }

    /// Dtype in which gradients are communicated
    "--comm-dtype" comm_dtype: Option<Dtype>, {
        heading: "Engine", placeholder: "DTYPE",
        engines: &[Engine::Native, Engine::DeepSpeed, Engine::Fsdp1, Engine::Fsdp2], advice: "use --comm-hook",
        default_words: "the reduced buffer's dtype",
        key: ConfigKey::At("communication_data_type"),
        said: |spec| spec.comm_dtype,
    }

    /// Capacity of an IPG bucket, in elements
    "--reduce-bucket-size" reduce_bucket_size: Option<usize>, {
        heading: "Engine", placeholder: "N", engines: ZERO,
        default_words: "small enough that buckets fill",
        check: up_to::<ANY, _>,
        key: ConfigKey::At("zero_optimization.reduce_bucket_size"),
        // The accumulator dataflow has no bucket.
        said: |spec| (spec.dataflow() != Some(Dataflow::Accumulator)).then_some(spec.reduce_bucket_size),
    }

    /// Overlap reduction with backward
    "--overlap-comm" overlap_comm: Option<bool>, {
        heading: "ZeRO", engines: ZERO, default_words: "false, stage 3: true",
        key: ConfigKey::AskedAt("zero_optimization.overlap_comm"),
        said: |spec| spec.overlap_comm(),
    }

    /// Copy gradients to a contiguous buffer as they are produced
    "--contiguous-gradients" contiguous_gradients: Option<bool>, {
        heading: "ZeRO", engines: ZERO, default_words: "true",
        key: ConfigKey::AskedAt("zero_optimization.contiguous_gradients"),
        said: |spec| spec.contiguous_gradients(),
    }

    /// Reduce-scatter gradients instead of all-reducing them
    "--reduce-scatter" reduce_scatter: Option<bool>, {
        heading: "ZeRO", engines: ZERO, default_words: "true",
        key: ConfigKey::AskedAt("zero_optimization.reduce_scatter"),
        said: |spec| spec.reduce_scatter(),
    }

    /// Fill BF16_Optimizer's accumulator from hooks
    "--immediate-grad-update" immediate_grad_update: Option<bool>, {
        heading: "DeepSpeed", engines: DEEPSPEED, default_words: "false",
        key: ConfigKey::AskedAt("bf16.immediate_grad_update"),
        said: |spec| spec.immediate_grad_update(),
    }

    /// Ranks that each have a part of the same sequences (sequence parallelism)
    "--sequence-parallel" sequence_parallel: Option<usize> = |_| 1, {
        heading: "DeepSpeed", placeholder: "N", engines: DEEPSPEED,
        check: up_to::<MOST, _>,
        said: |spec| Some(spec.deepspeed()?.sequence_parallel),
    }

    /// Way in which DeepSpeed learns the ranks of sequence parallelism
    "--sequence-groups" sequence_groups: Option<SequenceGroups> = |_| SequenceGroups::Mpu, {
        heading: "DeepSpeed", engines: DEEPSPEED,
        said: |spec| Some(spec.deepspeed()?.sequence_groups),
    }

    /// Loss scale that the training loop itself sets, in any dtype
    "--override-loss-scale" override_loss_scale: Option<f64>, {
        heading: "DeepSpeed", placeholder: "SCALE", engines: DEEPSPEED, default_words: "none",
        check: power_of_two,
        said: |spec| spec.override_loss_scale(),
    }

    /// Key of DeepSpeed's configuration, as KEY=VALUE, for a setting without a flag; may be repeated
    "--deepspeed-set" deepspeed_set: Vec<Member>, {
        heading: "DeepSpeed", placeholder: "KEY=VALUE", engines: DEEPSPEED,
        key: ConfigKey::Anywhere(Member::write),
        said: |spec| spec.deepspeed_set(),
    }

    /// Maximum number of elements that one all-gather of parameters returns
    "--allgather-bucket-size" allgather_bucket_size: Option<usize> = |_| 500_000_000, {
        heading: "Native", placeholder: "N", engines: NATIVE,
        check: up_to::<ANY, _>,
        said: |spec| spec.allgather_bucket_size(),
    }

    /// Place of the optimizer states; with FSDP2 also of the parameters and gradients
    "--offload" offload: Option<Offload> = |_| Offload::None, {
        heading: "Engine", engines: OFFLOADING, harmless: |offload| *offload == Offload::None,
        key: ConfigKey::At("zero_optimization.offload_optimizer.device"),
        said: |spec| Some(spec.offload),
    }

    /// Dataflow of the native engine: where gradients wait
    "--dataflow" dataflow: Option<Dataflow>, {
        heading: "Engine", engines: NATIVE, default_words: "as DeepSpeed chooses for these dtypes",
        said: |spec| spec.dataflow(),
    }

    /// Global norm above which the gradient is scaled down; 0 turns clipping off
    "--gradient-clipping" gradient_clipping: Option<f64> = |_| 0.0, {
        heading: "Engine", placeholder: "NORM",
        check: norm,
        key: ConfigKey::At("gradient_clipping"),
        said: |spec| Some(spec.gradient_clipping),
    }

    /// Norm by which torch clips the gradient
    "--norm-type" norm_type: Option<NormType> = |_| NormType::Two, {
        heading: "Engine", engines: CLIPPED_BY_TORCH,
        said: |spec| Some(spec.norm_type),
    }

    /// Scale of the loss: a number, or `dynamic`. ZeRO scales the loss of fp16 models; DDP and FSDP2 leave it to
    /// torch's GradScaler
    "--loss-scale" loss_scale: Option<LossScale> = LossScale::default_of, {
        heading: "Engine", placeholder: "SCALE|dynamic", engines: WITH_LOSS_SCALE,
        default_words: "dynamic, from 2^6; DDP and FSDP2: 1",
        key: ConfigKey::Written("fp16.loss_scale, fp16.initial_scale_power", write_loss_scale),
        said: |spec| {
            let is_there = !is_passed_on(spec) || configured(spec, "fp16").is_some();
            is_there.then_some(spec.loss_scale)
        },
    }

    /// Capacity of a bucket in MiB
    "--bucket-cap-mb" bucket_cap_mb: Option<f64>, {
        heading: "DDP", placeholder: "MIB", engines: DDP,
        default_words: "small enough that buckets fill; 25 with power-sgd or delayed parameters",
        check: capacity,
        said: |spec| Some(spec.ddp()?.bucket_cap_mb),
    }

    /// Look for parameters that a loss does not reach
    "--find-unused-parameters" find_unused_parameters: Option<bool>, {
        heading: "DDP", engines: DDP, default_words: "true if a shape leaves parameters unused",
        said: |spec| Some(spec.ddp()?.find_unused_parameters),
    }

    /// Promise that the graph is the same in every step
    "--static-graph" static_graph: Option<bool> = |_| false, {
        heading: "DDP", engines: DDP,
        said: |spec| Some(spec.ddp()?.static_graph),
    }

    /// Make gradients views into the buckets
    "--gradient-as-bucket-view" gradient_as_bucket_view: Option<bool> = |_| false, {
        heading: "DDP", engines: DDP,
        said: |spec| Some(spec.ddp()?.gradient_as_bucket_view),
    }

    /// Communication hook of DDP
    "--comm-hook" comm_hook: Option<CommHook> = |_| CommHook::None, {
        heading: "DDP", engines: DDP,
        said: |spec| Some(spec.ddp()?.comm_hook),
    }

    /// Reduce the last half of the parameters together, when the first parameter has its gradient
    "--delayed-parameters" delayed_parameters: Option<DelayedParameters> = |_| DelayedParameters::None, {
        heading: "DDP", engines: DDP,
        said: |spec| Some(spec.ddp()?.delayed_parameters),
    }

    /// Compile the model under DDP with this backend of torch.compile
    "--compile" compile: Option<Compile> = |_| Compile::None, {
        heading: "DDP", engines: DDP,
        said: |spec| Some(spec.ddp()?.compile),
    }

    /// Part of the model that each rank holds
    "--sharding-strategy" sharding_strategy: Option<ShardingStrategy> = |_| ShardingStrategy::FullShard, {
        heading: "FSDP1", engines: FSDP1,
        said: |spec| Some(spec.fsdp1()?.sharding_strategy),
    }

    /// Give the optimizer the model's own parameters, and not the flat parameters
    "--use-orig-params" use_orig_params: Option<bool> = |_| false, {
        heading: "FSDP1", engines: FSDP1,
        said: |spec| Some(spec.fsdp1()?.use_orig_params),
    }

    /// Give the optimizer gradients in the dtype of the reduction
    "--keep-low-precision-grads" keep_low_precision_grads: Option<bool> = |_| false, {
        heading: "FSDP1", engines: FSDP1,
        said: |spec| Some(spec.fsdp1()?.keep_low_precision_grads),
    }

    /// Optimizer that steps during backward, as soon as DDP has reduced a bucket
    "--overlapped-optimizer" overlapped_optimizer: Option<OverlappedOptimizer> = |_| OverlappedOptimizer::None, {
        heading: "DDP", engines: DDP,
        said: |spec| Some(spec.ddp()?.overlapped_optimizer),
    }

    /// Free parameters between forward and backward
    "--reshard-after-forward" reshard_after_forward: Option<bool> = |_| true, {
        heading: "FSDP2", engines: FSDP2,
        said: |spec| Some(spec.fsdp2()?.reshard_after_forward),
    }

    /// Ranks among which parameters stay sharded between forward and backward
    "--shards-after-forward" shards_after_forward: Option<usize>, {
        heading: "FSDP2", placeholder: "N", engines: FSDP2, default_words: "the shards of the optimizer",
        check: up_to::<MOST, _>,
        said: |spec| spec.fsdp2()?.shards_after_forward,
    }

    /// Reduce gradients in every microbatch, and not only at the boundary
    "--reduce-every-microbatch" reduce_every_microbatch: Option<bool> = |_| false, {
        heading: "FSDP", engines: FSDP,
        said: |spec| spec.fsdp1().map(|it| it.reduce_every_microbatch).or(spec.fsdp2().map(|it| it.reduce_every_microbatch)),
    }

    /// Free parameters after the backward of every microbatch, and not only at the boundary
    "--reshard-after-backward" reshard_after_backward: Option<bool> = |_| true, {
        heading: "FSDP2", engines: FSDP2,
        said: |spec| Some(spec.fsdp2()?.reshard_after_backward),
    }

    /// Groups of ranks that each hold the whole model, sharded within the group (HSDP)
    "--replicas" replicas: Option<usize> = |_| 1, {
        heading: "FSDP", placeholder: "N", engines: FSDP,
        check: up_to::<MOST, _>,
        said: |spec| (spec.fsdp1().is_some() || spec.fsdp2().is_some()).then(|| spec.replicas()),
    }

    /// Ranks among which every parameter is split before it is sharded or averaged (tensor parallelism)
    "--tensor-parallel" tensor_parallel: Option<usize> = |_| 1, {
        heading: "FSDP2", placeholder: "N", engines: &[Engine::Fsdp2, Engine::Ddp],
        check: up_to::<MOST, _>,
        said: |spec| {
            let is_there = spec.fsdp2().is_some() || spec.ddp().is_some();
            is_there.then(|| spec.model_parallel())
        },
    }

    /// Dimension along which matrices are sharded; other parameters are always sharded along dimension 0
    "--shard-dimension" shard_dimension: Option<usize> = |_| 0, {
        heading: "FSDP2", placeholder: "0|1", engines: FSDP2,
        check: matrix_dimension,
        said: |spec| Some(spec.fsdp2()?.shard_dimension),
    }

    /// Sum gradients over the replicas only at the boundary, and within a replica in every microbatch
    "--all-reduce-at-boundary" all_reduce_at_boundary: Option<bool> = |_| false, {
        heading: "FSDP2", engines: FSDP2,
        said: |spec| Some(spec.fsdp2()?.all_reduce_at_boundary),
    }

    /// Average over the replicas in a user's hook; `fully_shard` does not know the replicas
    "--all-reduce-hook" all_reduce_hook: Option<bool> = |_| false, {
        heading: "FSDP2", engines: FSDP2,
        said: |spec| Some(spec.fsdp2()?.all_reduce_hook),
    }

    /// Divisor of the sum over the ranks; the loss makes up for the difference from the world size
    "--gradient-divide-factor" gradient_divide_factor: Option<f64>, {
        heading: "FSDP2", placeholder: "DIVISOR", engines: FSDP2, default_words: "the world size",
        said: |spec| spec.fsdp2()?.gradient_divide_factor,
    }

    /// Only sum in collectives, and divide outside of them
    "--force-sum-reduction" force_sum_reduction: Option<bool> = |_| false, {
        heading: "FSDP2", engines: FSDP2,
        said: |spec| Some(spec.fsdp2()?.force_sum_reduction),
    }

    /// Replace the parameters by those of a state dict before the first step
    "--assign-state-dict" assign_state_dict: Option<bool> = |_| false, {
        heading: "FSDP", engines: FSDP,
        said: |spec| spec.fsdp1().map(|it| it.assign_state_dict).or(spec.fsdp2().map(|it| it.assign_state_dict)),
    }

    /// Schedule of the pipeline
    "--schedule" schedule: Option<Schedule> = |_| Schedule::OneForwardOneBackward, {
        heading: "Pipeline", engines: PIPELINE,
        said: |spec| Some(spec.pipeline()?.schedule),
    }

    /// Pipelines that each hold the whole model; gradients are averaged over the pipelines
    "--pipelines" pipelines: Option<usize> = |_| 1, {
        heading: "Pipeline", placeholder: "N", engines: PIPELINE,
        check: up_to::<MOST, _>,
        said: |spec| Some(spec.pipeline()?.pipelines),
    }

    /// Wrapper of each stage that averages gradients over several pipelines
    "--data-parallel" data_parallel: Option<DataParallel> = |_| DataParallel::Ddp, {
        heading: "Pipeline", engines: PIPELINE,
        said: |spec| Some(spec.pipeline()?.data_parallel),
    }

    /// Let the schedule, and not the loss, divide gradients by the number of microbatches
    "--scale-grads" scale_grads: Option<bool> = |_| true, {
        heading: "Pipeline", engines: PIPELINE,
        said: |spec| Some(spec.pipeline()?.scale_grads),
    }

    /// Part of the engine that is observed: everything, or only the parameters after each step
    "--observe" observe: Option<Observation> = |_| Observation::Full, {
        said: |spec| Some(spec.observe),
    }

    /// Fill memory that torch allocates with NaN, so that reads before the first write are visible
    "--poison-memory" poison_memory: Option<bool> = |_| false, {
        said: |spec| Some(spec.poison_memory),
    }

    /// Inner optimizer
    "--optimizer" optimizer: Option<Optimizer>, {
        heading: "Engine", default_words: "sgd for the coded model, adamw otherwise",
        said: |spec| Some(spec.optimizer),
    }

    /// Parameter groups of the optimizer: 1, or 2 to separate parameters with weight decay from those without
    "--parameter-groups" parameter_groups: Option<usize> = |_| 1, {
        heading: "Engine", placeholder: "N",
        check: up_to::<2, _>,
        said: |spec| spec.parameter_groups,
    }

    /// Synthetic model
    "--model" model: Option<Model> = |_| Model::Coded, {
        heading: "Data",
        said: |spec| Some(spec.model),
    }

    /// Minimum number of elements of the model; above a million, samples of buffers are recorded
    "--parameters" parameters: Option<usize>, {
        heading: "Data", placeholder: "N", default_words: "as few as the model needs",
        check: up_to::<{ 1 << 36 }, _>,
        said: |spec| spec.parameters,
    }

    /// Unusual feature of the model or its use; may be repeated (`zprobe list shapes`)
    "--shape" shapes: Vec<Shape>, {
        heading: "Data", placeholder: "NAME",
        said: |spec| spec.shapes.clone(),
    }

    /// Samples per microbatch and rank
    "--micro-batch-size" micro_batch_size: Option<usize> = |_| 4, {
        heading: "Data", placeholder: "N",
        check: up_to::<MOST, _>,
        key: ConfigKey::AlwaysAt("train_micro_batch_size_per_gpu"),
        said: |spec| Some(spec.micro_batch_size),
    }

    /// Optimizer steps; with 2 or more, gradients left over from an earlier step are visible
    "--steps" steps: Option<usize> = |_| 2, {
        heading: "Data", placeholder: "N", reduction: Keep,
        check: up_to::<MOST, _>,
        said: |spec| Some(spec.steps),
    }

    /// Step before which ranks save a checkpoint, and go on with a new engine that loads it
    "--resume-before" resume_before: Option<usize>, {
        heading: "Data", placeholder: "STEP", engines: RESUMED, default_words: "none",
        check: up_to::<MOST, _>,
        said: |spec| spec.resume_before,
    }

    /// Seed of all synthetic data
    "--seed" seed: Option<u64> = |_| 0, {
        heading: "Data",
        said: |spec| Some(spec.seed),
    }

    /// Inject a fault into the native engine (`zprobe list faults`)
    "--inject" inject: Option<Fault>, {
        heading: "Data", placeholder: "FAULT", engines: NATIVE, reduction: Keep,
        said: |spec| spec.inject(),
    }

    /// Seconds of silence after which a rank counts as hung
    "--timeout" timeout_s: Option<u64> = |engine| engine.traits().timeout_s, {
        placeholder: "SECS", reduction: Keep, about: How,
        check: up_to::<1_000_000, _>,
        said: |spec| Some(spec.timeout_s),
    }

    /// Maximum size of the trace; a long or wide run leaves out what does not fit, and the report says so
    "--trace-budget" trace_budget: Option<ByteSize> = |_| ByteSize(DEFAULT_BUDGET), {
        placeholder: "SIZE", default_words: "50MB, or 64kB per rank", about: How,
        said: |spec| Some(ByteSize(spec.recording.budget)),
    }
}

/// The maximum number of ranks of a run.
pub const MOST_RANKS: usize = MOST;

/// The maximum count of steps, ranks, samples and the like: arithmetic with more could overflow.
const MOST: usize = 1 << 16;

/// The limit for counts that may be arbitrarily large.
const ANY: usize = usize::MAX;

/// Refuses a count of 0, and a count above `LIMIT`.
fn up_to<const LIMIT: usize, T>(flag: &'static str, count: &T) -> Result<(), Invalid>
where
    T: Copy + TryInto<usize>,
{
    match (*count).try_into().unwrap_or(usize::MAX) {
        0 => Err(Invalid::Zero { flag }),
        value if value > LIMIT => Err(Invalid::TooLarge { flag, value, limit: LIMIT }),
        _ => Ok(()),
    }
}

/// Refuses a dimension that matrices do not have.
fn matrix_dimension(flag: &'static str, dimension: &usize) -> Result<(), Invalid> {
    let reason = "a matrix has the dimensions 0 and 1; use 0 or 1";
    let refusal = || Invalid::contradiction(format!("{flag} {dimension}"), reason);
    if *dimension <= 1 { Ok(()) } else { Err(refusal()) }
}

/// Refuses norms that are negative or not finite.
fn norm(flag: &'static str, norm: &f64) -> Result<(), Invalid> {
    if norm.is_finite() && *norm >= 0.0 {
        return Ok(());
    }
    let reason = "a norm is a positive number; 0 turns clipping off";
    Err(Invalid::contradiction(format!("{flag} {norm}"), reason))
}

/// Refuses scales that are not powers of two, because codes are not exact with them.
fn power_of_two(flag: &'static str, scale: &f64) -> Result<(), Invalid> {
    if *scale > 0.0 && scale.is_finite() && scale.log2().fract() == 0.0 {
        return Ok(());
    }
    let reason = "codes stay exact only with powers of two; use a power of two";
    Err(Invalid::contradiction(format!("{flag} {scale}"), reason))
}

/// Refuses a bucket capacity of less than a byte.
fn capacity(flag: &'static str, mib: &f64) -> Result<(), Invalid> {
    if mib * MIB >= 1.0 && mib.is_finite() {
        return Ok(());
    }
    let reason = "a bucket holds at least one byte, which is 0.000001 MiB";
    Err(Invalid::contradiction(format!("{flag} {mib}"), reason))
}

/// Reads a number of ranks, `gpu` or `cpu`.
fn ranks(word: &str, request: &mut SpecRequest) -> Result<(), String> {
    match word {
        "gpu" => request.rank_per_gpu = true,
        "cpu" => {
            let cores = available_parallelism();
            let cores = cores.map_err(|error| format!("cannot count the cores: {error}"))?;
            request.world_size = Some(cores.get());
        }
        number => {
            let count = number.parse().map_err(|_: ParseIntError| {
                format!("--nproc-per-node {number}: give a whole number from 1, `gpu` or `cpu`")
            });
            request.world_size = Some(count?);
        }
    }
    Ok(())
}
