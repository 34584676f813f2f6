//! Form of a specification in traces and reports: every setting at the same level, and none for
//! settings that the engine does not have.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Backend, Buckets, Dataflow, DdpOptions, DeepSpeedOptions, Device, Dtype, Engine,
    EngineSettings, Fault, Flow, Fsdp2Options, LossScale, Model, NativeOptions, Observation,
    Offload, Optimizer, Recording, RunSpec, ScriptOptions, Shape, SpecRequest,
};

/// The complete specification of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RunSpec")]
pub(super) struct Wire {
    /// The engine under test.
    #[serde(deserialize_with = "any_engine")]
    #[schemars(schema_with = "any_engine_schema")]
    engine: Engine,
    /// ZeRO stage: 0 replicates, 1 partitions optimizer states, 2 gradients too, 3 parameters too.
    stage: u8,
    /// Number of ranks `W`.
    world_size: usize,
    /// Device that the ranks compute on.
    #[serde(default)]
    device: Device,
    /// Backend that the ranks communicate over.
    #[serde(default)]
    backend: Backend,
    /// Microbatches per optimizer step `GA`.
    gradient_accumulation_steps: usize,
    /// Optimizer steps. From two on, a gradient left over from the step before is visible.
    steps: usize,
    /// Number of steps after which codes are used again; none where every step has codes of its
    /// own.
    #[serde(default)]
    code_steps: Option<usize>,
    /// Dtype of the model's parameters and of each microbatch's gradient.
    dtype: Dtype,
    /// Dtype in which microbatches are added up.
    grad_accum_dtype: Dtype,
    /// Dtype in which gradients cross ranks; none where that is left to the engine under test.
    comm_dtype: Option<Dtype>,
    /// Place where gradients wait between backward and reduction, in the native engine; none for
    /// the other engines, which have dataflows of their own.
    dataflow: Option<Dataflow>,
    /// Capacity of an IPG bucket, in elements (DeepSpeed's `reduce_bucket_size`).
    reduce_bucket_size: usize,
    /// Most elements that one all-gather of parameters returns (DeepSpeed's `allgather_bucket_size`);
    /// none where that is left to the engine.
    #[serde(default)]
    allgather_bucket_size: Option<usize>,
    /// Number of parameter groups: 1, or 2 to separate parameters that are decayed from those that
    /// are not; none for engines that always have one.
    #[serde(default)]
    parameter_groups: Option<usize>,
    /// Place where the optimizer's states live.
    offload: Offload,
    /// True if reduction overlaps backward (DeepSpeed's `overlap_comm`). This and the next three
    /// are none where they are left to the engine.
    overlap_comm: Option<bool>,
    /// True if gradients are copied to a contiguous buffer as they are produced (DeepSpeed's
    /// `contiguous_gradients`).
    contiguous_gradients: Option<bool>,
    /// True if gradients are reduce-scattered instead of all-reduced (DeepSpeed's
    /// `reduce_scatter`).
    reduce_scatter: Option<bool>,
    /// True if `BF16_Optimizer` fills its accumulator from hooks (DeepSpeed's
    /// `bf16.immediate_grad_update`).
    immediate_grad_update: Option<bool>,
    /// Global norm above which the gradient is scaled down; 0 for no clipping.
    gradient_clipping: f64,
    /// Scale of the loss of an fp16 model.
    loss_scale: LossScale,
    /// Settings of DDP; none for other engines.
    ddp: Option<DdpOptions>,
    /// Settings of FSDP2; none for other engines.
    fsdp2: Option<Fsdp2Options>,
    /// The user's own training script; none for runs of an engine on zprobe's own model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    script: Option<ScriptOptions>,
    /// Configuration of the real DeepSpeed: the user's file as it is, or the one that follows from
    /// the flags; none for other engines.
    deepspeed_config: Option<serde_json::Value>,
    /// Extent to which the engine is observed.
    observe: Observation,
    /// True if memory that torch hands out holds NaN until it is written to.
    #[serde(default)]
    poison_memory: bool,
    /// The synthetic model.
    model: Model,
    /// Number of elements that the model has at least; none for the smallest possible model.
    parameters: Option<usize>,
    /// Shapes of the run: unusual features of the model, and of its use.
    shapes: Vec<Shape>,
    /// Samples per microbatch and rank (`train_micro_batch_size_per_gpu`).
    micro_batch_size: usize,
    /// The inner optimizer, on fp32 master weights.
    optimizer: Optimizer,
    /// Seed of all synthetic data.
    seed: u64,
    /// A deliberate fault, if any.
    inject: Option<Fault>,
    /// Seconds without an event after which a rank counts as hung.
    timeout_s: u64,
    /// The parts of the run that its trace holds.
    #[serde(default)]
    recording: Recording,
}

/// Reads the name of an engine; that of a script, which no file of a user may ask for, is one too.
fn any_engine<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Engine, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = Engine::ALL.iter().find(|engine| engine.name() == name);
    found.copied().ok_or_else(|| D::Error::custom(format!("no engine is called `{name}`")))
}

fn any_engine_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = Engine::ALL.iter().map(|engine| engine.name()).collect();
    json_schema!({"type": "string", "enum": names})
}

/// Sets the fields that a specification and its written form have in common.
macro_rules! with_common {
    ($type:ident { $($own:ident: $value:expr),* $(,)? }, $from:ident) => {
        $type {
            $($own: $value,)*
            stage: $from.stage,
            world_size: $from.world_size,
            device: $from.device,
            backend: $from.backend,
            gradient_accumulation_steps: $from.gradient_accumulation_steps,
            steps: $from.steps,
            code_steps: $from.code_steps,
            dtype: $from.dtype,
            grad_accum_dtype: $from.grad_accum_dtype,
            comm_dtype: $from.comm_dtype,
            reduce_bucket_size: $from.reduce_bucket_size,
            offload: $from.offload,
            gradient_clipping: $from.gradient_clipping,
            loss_scale: $from.loss_scale,
            observe: $from.observe,
            poison_memory: $from.poison_memory,
            model: $from.model,
            parameters: $from.parameters,
            shapes: $from.shapes,
            micro_batch_size: $from.micro_batch_size,
            optimizer: $from.optimizer,
            seed: $from.seed,
            timeout_s: $from.timeout_s,
            recording: $from.recording,
        }
    };
}

impl From<RunSpec> for Wire {
    fn from(spec: RunSpec) -> Self {
        with_common!(
            Wire {
                engine: spec.engine(),
                dataflow: spec.dataflow(),
                allgather_bucket_size: spec.allgather_bucket_size(),
                parameter_groups: spec.parameter_groups(),
                overlap_comm: spec.overlap_comm(),
                contiguous_gradients: spec.contiguous_gradients(),
                reduce_scatter: spec.reduce_scatter(),
                immediate_grad_update: spec.immediate_grad_update(),
                ddp: spec.ddp(),
                fsdp2: spec.fsdp2(),
                deepspeed_config: spec.deepspeed_config().cloned(),
                inject: spec.inject(),
                script: spec.script().cloned(),
            },
            spec
        )
    }
}

impl TryFrom<Wire> for RunSpec {
    type Error = String;

    /// Reads a specification back; settings of other engines are left out.
    fn try_from(wire: Wire) -> Result<Self, String> {
        let lacks = |name: &str| format!("a run of the {} engine without `{name}`", wire.engine);
        let set = |name: &str, value: Option<bool>| value.ok_or_else(|| lacks(name));
        let settings = match wire.engine {
            Engine::Native => {
                let flow = match wire.dataflow.ok_or_else(|| lacks("dataflow"))? {
                    Dataflow::Accumulator => Flow::Accumulator,
                    Dataflow::IpgBucket => Flow::IpgBucket(Buckets {
                        overlap_comm: set("overlap_comm", wire.overlap_comm)?,
                        contiguous_gradients: set(
                            "contiguous_gradients",
                            wire.contiguous_gradients,
                        )?,
                        reduce_scatter: set("reduce_scatter", wire.reduce_scatter)?,
                    }),
                };
                // Traces that were written before these settings existed have none.
                let request = SpecRequest {
                    allgather_bucket_size: wire.allgather_bucket_size,
                    parameter_groups: wire.parameter_groups,
                    ..SpecRequest::default()
                };
                let asked = request.or_default(Engine::Native);
                EngineSettings::Native(NativeOptions {
                    flow,
                    allgather_bucket_size: asked.allgather_bucket_size(),
                    parameter_groups: asked.parameter_groups(),
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
            Engine::Script => EngineSettings::Script(wire.script.ok_or_else(|| lacks("script"))?),
        };
        Ok(with_common!(RunSpec { settings: settings }, wire))
    }
}
