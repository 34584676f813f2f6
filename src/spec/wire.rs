//! A specification as it is written into traces and reports: every setting at the same level, and none
//! where the engine does not have it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Backend, Dataflow, DdpOptions, DeepSpeedOptions, Device, Dtype, Engine, EngineSettings, Fault,
    Flow, Fsdp2Options, LossScale, Model, NativeOptions, Observation, Offload, Optimizer,
    Recording, RunSpec, Shape, SpecRequest,
};

/// One run, completely specified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RunSpec")]
pub(super) struct Wire {
    /// The engine under test.
    engine: Engine,
    /// ZeRO stage: 0 replicates, 1 partitions optimizer states, 2 gradients too, 3 parameters too.
    stage: u8,
    /// Number of ranks `W`.
    world_size: usize,
    /// Where they compute.
    #[serde(default)]
    device: Device,
    /// How they communicate.
    #[serde(default)]
    backend: Backend,
    /// Microbatches per optimizer step `GA`.
    gradient_accumulation_steps: usize,
    /// Optimizer steps. From two on, a gradient left over from the step before is visible.
    steps: usize,
    /// Steps after which codes are used again; none where every step has codes of its own.
    #[serde(default)]
    code_steps: Option<usize>,
    /// Dtype of the model's parameters and of each microbatch's gradient.
    dtype: Dtype,
    /// Dtype in which microbatches are added up.
    grad_accum_dtype: Dtype,
    /// Dtype in which gradients cross ranks; none where that is left to the engine under test.
    comm_dtype: Option<Dtype>,
    /// Where gradients wait between backward and reduction, in the native engine; the others have
    /// ways of their own.
    dataflow: Option<Dataflow>,
    /// Capacity of an IPG bucket, in elements (DeepSpeed's `reduce_bucket_size`).
    reduce_bucket_size: usize,
    /// Most elements that one all-gather of parameters returns (DeepSpeed's `allgather_bucket_size`);
    /// none where that is left to the engine.
    #[serde(default)]
    allgather_bucket_size: Option<usize>,
    /// Parameter groups: 1, or 2 to part what is decayed from what is not; none for engines that are
    /// given one.
    #[serde(default)]
    parameter_groups: Option<usize>,
    /// Where the optimizer's states live.
    offload: Offload,
    /// Whether reduction overlaps backward (DeepSpeed's `overlap_comm`); this and the next three
    /// are none where that is left to the engine.
    overlap_comm: Option<bool>,
    /// Whether gradients are copied to a contiguous buffer as they are produced (DeepSpeed's
    /// `contiguous_gradients`).
    contiguous_gradients: Option<bool>,
    /// Whether gradients are reduce-scattered instead of all-reduced (DeepSpeed's
    /// `reduce_scatter`).
    reduce_scatter: Option<bool>,
    /// Whether `BF16_Optimizer` fills its accumulator from hooks (DeepSpeed's
    /// `bf16.immediate_grad_update`).
    immediate_grad_update: Option<bool>,
    /// Largest global norm of the gradient before it is scaled down; 0 for no clipping.
    gradient_clipping: f64,
    /// Scale of the loss of an fp16 model.
    loss_scale: LossScale,
    /// Settings of DDP; none for other engines.
    ddp: Option<DdpOptions>,
    /// Settings of FSDP2; none for other engines.
    fsdp2: Option<Fsdp2Options>,
    /// What the real DeepSpeed is configured with: the user's file as it is, or what follows from
    /// the flags; none for other engines.
    deepspeed_config: Option<serde_json::Value>,
    /// How much of the engine is observed.
    observe: Observation,
    /// Whether memory that torch hands out holds NaN until somebody writes to it.
    #[serde(default)]
    poison_memory: bool,
    /// The synthetic model.
    model: Model,
    /// Elements that the model has at least; none for the model as small as it can be.
    parameters: Option<usize>,
    /// What is unusual about it, and about how it is used.
    shapes: Vec<Shape>,
    /// Samples per microbatch and rank (`train_micro_batch_size_per_gpu`).
    micro_batch_size: usize,
    /// The inner optimizer, on fp32 master weights.
    optimizer: Optimizer,
    /// Seed of all synthetic data.
    seed: u64,
    /// A deliberate fault, if any.
    inject: Option<Fault>,
    /// Seconds without an event from a rank after which it counts as hung.
    timeout_s: u64,
    /// The parts of the run that its trace holds.
    #[serde(default)]
    recording: Recording,
}

impl From<RunSpec> for Wire {
    fn from(spec: RunSpec) -> Self {
        Self {
            engine: spec.engine(),
            dataflow: spec.dataflow(),
            allgather_bucket_size: spec.native().map(|it| it.allgather_bucket_size),
            parameter_groups: spec.native().map(|it| it.parameter_groups),
            overlap_comm: spec.overlap_comm(),
            contiguous_gradients: spec.contiguous_gradients(),
            reduce_scatter: spec.reduce_scatter(),
            immediate_grad_update: spec.immediate_grad_update(),
            ddp: spec.ddp(),
            fsdp2: spec.fsdp2(),
            deepspeed_config: spec.deepspeed_config().cloned(),
            inject: spec.inject(),
            stage: spec.stage,
            world_size: spec.world_size,
            device: spec.device,
            backend: spec.backend,
            gradient_accumulation_steps: spec.gradient_accumulation_steps,
            steps: spec.steps,
            code_steps: spec.code_steps,
            dtype: spec.dtype,
            grad_accum_dtype: spec.grad_accum_dtype,
            comm_dtype: spec.comm_dtype,
            reduce_bucket_size: spec.reduce_bucket_size,
            offload: spec.offload,
            gradient_clipping: spec.gradient_clipping,
            loss_scale: spec.loss_scale,
            observe: spec.observe,
            poison_memory: spec.poison_memory,
            model: spec.model,
            parameters: spec.parameters,
            shapes: spec.shapes,
            micro_batch_size: spec.micro_batch_size,
            optimizer: spec.optimizer,
            seed: spec.seed,
            timeout_s: spec.timeout_s,
            recording: spec.recording,
        }
    }
}

impl TryFrom<Wire> for RunSpec {
    type Error = String;

    /// What is there of another engine's settings is left out.
    fn try_from(wire: Wire) -> Result<Self, String> {
        let lacks = |name: &str| format!("a run of the {} engine without `{name}`", wire.engine);
        let settings = match wire.engine {
            Engine::Native => {
                let flow = match wire.dataflow.ok_or_else(|| lacks("dataflow"))? {
                    Dataflow::Accumulator => Flow::Accumulator,
                    Dataflow::IpgBucket => Flow::IpgBucket {
                        overlap_comm: wire.overlap_comm.ok_or_else(|| lacks("overlap_comm"))?,
                        contiguous_gradients: wire
                            .contiguous_gradients
                            .ok_or_else(|| lacks("contiguous_gradients"))?,
                        reduce_scatter: wire
                            .reduce_scatter
                            .ok_or_else(|| lacks("reduce_scatter"))?,
                    },
                };
                // Traces from before there were these have none.
                let before = SpecRequest::default();
                let before = before.or_default(Engine::Native);
                EngineSettings::Native(NativeOptions {
                    flow,
                    allgather_bucket_size: wire
                        .allgather_bucket_size
                        .unwrap_or_else(|| before.allgather_bucket_size()),
                    parameter_groups: wire
                        .parameter_groups
                        .unwrap_or_else(|| before.parameter_groups()),
                    inject: wire.inject,
                })
            }
            Engine::DeepSpeed => EngineSettings::DeepSpeed(DeepSpeedOptions {
                config: wire.deepspeed_config,
                overlap_comm: wire.overlap_comm,
                contiguous_gradients: wire.contiguous_gradients,
                reduce_scatter: wire.reduce_scatter,
                immediate_grad_update: wire.immediate_grad_update,
            }),
            Engine::Ddp => EngineSettings::Ddp(wire.ddp.ok_or_else(|| lacks("ddp"))?),
            Engine::Fsdp2 => EngineSettings::Fsdp2(wire.fsdp2.ok_or_else(|| lacks("fsdp2"))?),
        };
        Ok(Self {
            settings,
            stage: wire.stage,
            world_size: wire.world_size,
            device: wire.device,
            backend: wire.backend,
            gradient_accumulation_steps: wire.gradient_accumulation_steps,
            steps: wire.steps,
            code_steps: wire.code_steps,
            dtype: wire.dtype,
            grad_accum_dtype: wire.grad_accum_dtype,
            comm_dtype: wire.comm_dtype,
            reduce_bucket_size: wire.reduce_bucket_size,
            offload: wire.offload,
            gradient_clipping: wire.gradient_clipping,
            loss_scale: wire.loss_scale,
            observe: wire.observe,
            poison_memory: wire.poison_memory,
            model: wire.model,
            parameters: wire.parameters,
            shapes: wire.shapes,
            micro_batch_size: wire.micro_batch_size,
            optimizer: wire.optimizer,
            seed: wire.seed,
            timeout_s: wire.timeout_s,
            recording: wire.recording,
        })
    }
}
