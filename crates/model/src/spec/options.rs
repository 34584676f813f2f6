//! The settings that only some engines have: how a request sets them, and their form in traces and reports.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::deepspeed::Member;
use super::{
    Dataflow, DdpOptions, Engine, EngineSettings, Fault, Fsdp1Options, Fsdp2Options,
    PipelineOptions, RunSpec, ScriptOptions, SpecRequest, named_enum,
};

/// The settings of zprobe's own engine.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeOptions {
    /// The settings of IPG buckets; `None` for [`Dataflow::Accumulator`], which has no buckets.
    pub buckets: Option<Buckets>,
    /// The maximum number of elements that one all-gather of parameters returns.
    pub allgather_bucket_size: usize,
    /// The injected fault, if any.
    pub inject: Option<Fault>,
}

/// The settings of IPG buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// True if the reduction overlaps the backward.
    pub overlap_comm: bool,
    /// True if gradients are copied to a contiguous buffer as they are produced.
    pub contiguous_gradients: bool,
    /// True if gradients are reduce-scattered instead of all-reduced.
    pub reduce_scatter: bool,
}

/// The settings of DeepSpeed. All fields except the configuration hold what flags requested.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepSpeedOptions {
    /// The configuration of the engine: the user's file unchanged, or a configuration made from the flags. `None`
    /// only in a trace that does not contain the configuration.
    pub config: Option<Value>,
    /// The value of `zero_optimization.overlap_comm`, if a flag gave one.
    pub overlap_comm: Option<bool>,
    /// The value of `zero_optimization.contiguous_gradients`, if a flag gave one.
    pub contiguous_gradients: Option<bool>,
    /// The value of `zero_optimization.reduce_scatter`, if a flag gave one.
    pub reduce_scatter: Option<bool>,
    /// The value of `bf16.immediate_grad_update`, if a flag gave one.
    pub immediate_grad_update: Option<bool>,
    /// The loss scale that the training loop itself sets (the optimizer's `override_loss_scale`), if any.
    pub override_loss_scale: Option<f64>,
    /// The keys of the configuration that flags set and that have no flag of their own.
    pub set: Vec<Member>,
    /// The number of ranks that each hold a part of the same sequences (Ulysses); 1 for none.
    pub sequence_parallel: usize,
    /// The way in which DeepSpeed learns which ranks hold parts of the same sequences.
    pub sequence_groups: SequenceGroups,
}

named_enum! {
    /// The way in which DeepSpeed learns which ranks hold parts of the same sequences.
    pub enum SequenceGroups {
        /// From an object with the groups (`mpu`): DeepSpeed's own `parallel_state_sp`.
        Mpu = "mpu",
        /// From the dimensions of a device mesh (`mesh_param`).
        Mesh = "mesh",
    }
}

impl NativeOptions {
    /// The settings that a request asks for in `stage`. The defaults are those of DeepSpeed (`DeepSpeedZeroConfig`
    /// in `runtime/zero/config.py`).
    pub(super) fn new(request: &SpecRequest, stage: u8, dataflow: Option<Dataflow>) -> Self {
        let asked = request.or_default(Engine::Native);
        Self {
            buckets: (dataflow == Some(Dataflow::IpgBucket)).then(|| Buckets {
                overlap_comm: request.overlap_comm.unwrap_or(stage == 3),
                contiguous_gradients: request.contiguous_gradients.unwrap_or(true),
                reduce_scatter: request.reduce_scatter.unwrap_or(true),
            }),
            allgather_bucket_size: asked.allgather_bucket_size(),
            inject: request.inject,
        }
    }

    /// The place where gradients wait between backward and reduction.
    fn dataflow(&self) -> Dataflow {
        if self.buckets.is_some() { Dataflow::IpgBucket } else { Dataflow::Accumulator }
    }
}

impl DeepSpeedOptions {
    /// The settings that a request asks for, without the configuration, which is filled in last because it follows
    /// from the other settings.
    pub(super) fn new(request: &SpecRequest) -> Self {
        let asked = request.or_default(Engine::DeepSpeed);
        Self {
            config: None,
            overlap_comm: request.overlap_comm,
            contiguous_gradients: request.contiguous_gradients,
            reduce_scatter: request.reduce_scatter,
            immediate_grad_update: request.immediate_grad_update,
            override_loss_scale: request.override_loss_scale,
            set: request.deepspeed_set.clone(),
            sequence_parallel: asked.sequence_parallel(),
            sequence_groups: asked.sequence_groups(),
        }
    }
}

impl RunSpec {
    /// The settings of the native engine; `None` for other engines.
    pub fn native(&self) -> Option<&NativeOptions> {
        if let EngineSettings::Native(options) = &self.settings { Some(options) } else { None }
    }

    /// The settings of DeepSpeed; `None` for other engines.
    pub fn deepspeed(&self) -> Option<&DeepSpeedOptions> {
        if let EngineSettings::DeepSpeed(options) = &self.settings { Some(options) } else { None }
    }

    /// The settings of DDP; `None` for other engines.
    pub fn ddp(&self) -> Option<DdpOptions> {
        if let EngineSettings::Ddp(options) = self.settings { Some(options) } else { None }
    }

    /// The settings of FSDP1; `None` for other engines.
    pub fn fsdp1(&self) -> Option<Fsdp1Options> {
        if let EngineSettings::Fsdp1(options) = self.settings { Some(options) } else { None }
    }

    /// The settings of FSDP2; `None` for other engines.
    pub fn fsdp2(&self) -> Option<Fsdp2Options> {
        if let EngineSettings::Fsdp2(options) = self.settings { Some(options) } else { None }
    }

    /// The number of groups of ranks that each hold the whole model, sharded within the group; 1 unless FSDP shards
    /// several replicas.
    pub fn replicas(&self) -> usize {
        match self.settings {
            EngineSettings::Fsdp1(fsdp1) => fsdp1.replicas,
            EngineSettings::Fsdp2(fsdp2) => fsdp2.replicas,
            _ => 1,
        }
    }

    /// The index of the replica of the model that a rank holds a part of; consecutive ranks hold the same replica.
    /// `None` unless FSDP shards several replicas.
    pub fn replica(&self, rank: usize) -> Option<usize> {
        let replicas = self.replicas();
        (replicas > 1).then(|| rank / (self.world_size / replicas))
    }

    /// The settings of pipelining schedules; `None` for other engines.
    pub fn pipeline(&self) -> Option<PipelineOptions> {
        if let EngineSettings::Pipeline(options) = self.settings { Some(options) } else { None }
    }

    /// The number of parts into which the model is split, one part per rank; consecutive ranks hold the parts of
    /// one model. 1 if every rank holds all parameters.
    pub fn model_parallel(&self) -> usize {
        match self.settings {
            EngineSettings::Ddp(ddp) => ddp.tensor_parallel,
            EngineSettings::Fsdp2(fsdp2) => fsdp2.tensor_parallel,
            EngineSettings::Pipeline(pipeline) => self.world_size / pipeline.pipelines,
            _ => 1,
        }
    }

    /// The configuration that the real DeepSpeed gets; `None` for other engines.
    pub fn deepspeed_config(&self) -> Option<&Value> {
        self.deepspeed()?.config.as_ref()
    }

    /// The place where gradients wait between backward and reduction in the native engine; `None` for other
    /// engines, which have dataflows of their own.
    pub fn dataflow(&self) -> Option<Dataflow> {
        self.native().map(NativeOptions::dataflow)
    }

    /// The maximum number of elements that one all-gather of parameters returns; `None` if the engine decides.
    pub fn allgather_bucket_size(&self) -> Option<usize> {
        Some(self.native()?.allgather_bucket_size)
    }

    /// The injected fault of the native engine, if any.
    pub fn inject(&self) -> Option<Fault> {
        self.native()?.inject
    }

    /// True if the reduction overlaps the backward; `None` if the engine decides, or if the setting has no meaning
    /// for the engine.
    pub fn overlap_comm(&self) -> Option<bool> {
        let buckets = self.buckets().map(|buckets| buckets.overlap_comm);
        buckets.or_else(|| self.deepspeed()?.overlap_comm)
    }

    /// True if gradients are copied to a contiguous buffer as they are produced; `None` as in
    /// [`RunSpec::overlap_comm`].
    pub fn contiguous_gradients(&self) -> Option<bool> {
        let buckets = self.buckets().map(|buckets| buckets.contiguous_gradients);
        buckets.or_else(|| self.deepspeed()?.contiguous_gradients)
    }

    /// True if gradients are reduce-scattered instead of all-reduced; `None` as in [`RunSpec::overlap_comm`].
    pub fn reduce_scatter(&self) -> Option<bool> {
        let buckets = self.buckets().map(|buckets| buckets.reduce_scatter);
        buckets.or_else(|| self.deepspeed()?.reduce_scatter)
    }

    /// The settings of the native engine's IPG buckets; `None` if there are none.
    fn buckets(&self) -> Option<Buckets> {
        self.native()?.buckets
    }

    /// The keys of DeepSpeed's configuration that flags set and that have no flag of their own.
    pub fn deepspeed_set(&self) -> Vec<Member> {
        self.deepspeed().map(|deepspeed| deepspeed.set.clone()).unwrap_or_default()
    }

    /// True if `BF16_Optimizer` fills its accumulator from hooks; `None` as in [`RunSpec::overlap_comm`].
    pub fn immediate_grad_update(&self) -> Option<bool> {
        self.deepspeed()?.immediate_grad_update
    }

    /// The loss scale that the training loop itself sets, if any.
    pub fn override_loss_scale(&self) -> Option<f64> {
        self.deepspeed()?.override_loss_scale
    }
}

named_enum! {
    /// The place of the optimizer states.
    pub enum Offload {
        /// With the model, on the same device.
        None = "none",
        /// In the host's memory (DeepSpeed's `offload_optimizer`).
        Cpu = "cpu",
    }
}

named_enum! {
    /// The observed part of the engine.
    pub enum Observation {
        /// Every point of the gradient's journey that is visible in the engine.
        Full = "full",
        /// Only the parameters after each step, without wrappers and hooks.
        Outcome = "outcome",
    }
}

named_enum! {
    /// The norm by which torch's `clip_grad_norm_` clips the gradient (`norm_type`).
    #[derive(Default)]
    pub enum NormType {
        /// The root of the sum of squares.
        #[default]
        Two = "2",
        /// The sum of absolute values.
        One = "1",
        /// The largest absolute value.
        Infinity = "inf",
    }
}

impl NormType {
    /// True for the 2-norm, which traces do not name.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_usual(&self) -> bool {
        *self == NormType::Two
    }

    /// The norm of a vector with these elements.
    pub fn of(self, elements: impl Iterator<Item = f64>) -> f64 {
        let sizes = elements.map(f64::abs);
        match self {
            NormType::Two => sizes.map(|it| it * it).sum::<f64>().sqrt(),
            NormType::One => sizes.sum(),
            NormType::Infinity => sizes.fold(0.0, f64::max),
        }
    }
}

/// The scale of the loss: of an fp16 model, or of any model that torch's `GradScaler` scales.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum LossScale {
    /// A scale that never changes.
    Static {
        /// The loss scale.
        scale: f64,
    },
    /// A scale that is halved when a gradient overflows, and doubled after many steps without
    /// overflow.
    Dynamic {
        /// The exponent of the initial scale, which is 2 to this power (DeepSpeed's `initial_scale_power`).
        initial_power: u32,
    },
}

impl LossScale {
    /// A dynamic scale that is low enough that coded gradients of many ranks do not overflow.
    pub const DEFAULT: LossScale = LossScale::Dynamic { initial_power: 6 };

    /// The default of an engine: PyTorch's engines leave the loss as it is.
    pub(super) fn default_of(engine: Engine) -> Self {
        let scales_loss = engine.traits().scales_loss;
        if scales_loss { Self::DEFAULT } else { Self::Static { scale: 1.0 } }
    }

    /// The scale of the first step.
    pub fn initial(self) -> f64 {
        match self {
            LossScale::Static { scale } => scale,
            LossScale::Dynamic { initial_power } => f64::from(initial_power).exp2(),
        }
    }
}

/// The form of the settings in traces and reports: the settings of all engines next to each other. A setting that
/// the engine does not have is `None`.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
pub(super) struct Written {
    /// The engine under test.
    #[serde(deserialize_with = "any_engine")]
    #[schemars(schema_with = "any_engine_schema")]
    engine: Engine,
    /// The place where gradients wait between backward and reduction in the native engine; `None` for other
    /// engines, which have dataflows of their own.
    dataflow: Option<Dataflow>,
    /// The maximum number of elements that one all-gather of parameters returns (DeepSpeed's
    /// `allgather_bucket_size`); `None` if the engine decides.
    #[serde(default)]
    allgather_bucket_size: Option<usize>,
    /// True if the reduction overlaps the backward (DeepSpeed's `overlap_comm`); `None` if the engine decides.
    overlap_comm: Option<bool>,
    /// True if gradients are copied to a contiguous buffer as they are produced (DeepSpeed's
    /// `contiguous_gradients`); `None` if the engine decides.
    contiguous_gradients: Option<bool>,
    /// True if gradients are reduce-scattered instead of all-reduced (DeepSpeed's `reduce_scatter`); `None` if the
    /// engine decides.
    reduce_scatter: Option<bool>,
    /// True if `BF16_Optimizer` fills its accumulator from hooks (DeepSpeed's `bf16.immediate_grad_update`); `None`
    /// if the engine decides.
    immediate_grad_update: Option<bool>,
    /// The loss scale that the training loop itself sets (DeepSpeed's `override_loss_scale`), if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    override_loss_scale: Option<f64>,
    /// The number of ranks that each hold a part of the same sequences; `None` for engines other than DeepSpeed,
    /// and in older traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence_parallel: Option<usize>,
    /// The way in which DeepSpeed learns which ranks hold parts of the same sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence_groups: Option<SequenceGroups>,
    /// The keys of DeepSpeed's configuration that flags set and that have no flag of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deepspeed_set: Vec<Member>,
    /// The settings of DDP; `None` for other engines.
    ddp: Option<DdpOptions>,
    /// The settings of FSDP1; `None` for other engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fsdp1: Option<Fsdp1Options>,
    /// The settings of FSDP2; `None` for other engines.
    fsdp2: Option<Fsdp2Options>,
    /// The settings of pipelining schedules; `None` for other engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pipeline: Option<PipelineOptions>,
    /// The user's own training script; `None` for runs of an engine on zprobe's own model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    script: Option<ScriptOptions>,
    /// The configuration that the real DeepSpeed gets: the user's file unchanged, or a configuration made from the
    /// flags; `None` for other engines.
    deepspeed_config: Option<Value>,
    /// The injected fault, if any.
    inject: Option<Fault>,
}

/// Reads the name of an engine, including that of a script, which no file of a user may ask for.
pub fn any_engine<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Engine, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = Engine::ALL.iter().find(|engine| engine.name() == name);
    found.copied().ok_or_else(|| D::Error::custom(format!("no engine is called `{name}`")))
}

/// The schema of a field that [`any_engine`] reads: the name of an engine.
pub fn any_engine_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<&str> = Engine::ALL.iter().map(|engine| engine.name()).collect();
    json_schema!({"type": "string", "enum": names})
}

impl From<EngineSettings> for Written {
    fn from(settings: EngineSettings) -> Self {
        let none = Self { engine: settings.engine(), ..Self::default() };
        match settings {
            EngineSettings::Native(native) => {
                let buckets = native.buckets;
                Self {
                    dataflow: Some(native.dataflow()),
                    overlap_comm: buckets.map(|it| it.overlap_comm),
                    contiguous_gradients: buckets.map(|it| it.contiguous_gradients),
                    reduce_scatter: buckets.map(|it| it.reduce_scatter),
                    allgather_bucket_size: Some(native.allgather_bucket_size),
                    inject: native.inject,
                    ..none
                }
            }
            EngineSettings::DeepSpeed(deepspeed) => Self {
                deepspeed_config: deepspeed.config,
                overlap_comm: deepspeed.overlap_comm,
                contiguous_gradients: deepspeed.contiguous_gradients,
                reduce_scatter: deepspeed.reduce_scatter,
                immediate_grad_update: deepspeed.immediate_grad_update,
                override_loss_scale: deepspeed.override_loss_scale,
                deepspeed_set: deepspeed.set,
                sequence_parallel: Some(deepspeed.sequence_parallel),
                sequence_groups: Some(deepspeed.sequence_groups),
                ..none
            },
            EngineSettings::Ddp(ddp) => Self { ddp: Some(ddp), ..none },
            EngineSettings::Fsdp1(fsdp1) => Self { fsdp1: Some(fsdp1), ..none },
            EngineSettings::Fsdp2(fsdp2) => Self { fsdp2: Some(fsdp2), ..none },
            EngineSettings::Pipeline(pipeline) => Self { pipeline: Some(pipeline), ..none },
            EngineSettings::Script(script) => Self { script: Some(script), ..none },
            EngineSettings::Plain(_) => none,
        }
    }
}

impl TryFrom<Written> for EngineSettings {
    type Error = String;

    /// Reads settings back from a trace, without those of other engines.
    fn try_from(written: Written) -> Result<Self, String> {
        let Written { engine, .. } = written;
        let lacks = |name: &str| format!("a run of the {engine} engine lacks `{name}`");
        // Settings that traces have always had must be present; other settings may be newer than the trace.
        let request = SpecRequest {
            overlap_comm: written.overlap_comm,
            contiguous_gradients: written.contiguous_gradients,
            reduce_scatter: written.reduce_scatter,
            immediate_grad_update: written.immediate_grad_update,
            override_loss_scale: written.override_loss_scale,
            deepspeed_set: written.deepspeed_set,
            sequence_parallel: written.sequence_parallel,
            sequence_groups: written.sequence_groups,
            allgather_bucket_size: written.allgather_bucket_size,
            inject: written.inject,
            ..SpecRequest::default()
        };
        Ok(match engine {
            Engine::Native => {
                let dataflow = written.dataflow.ok_or_else(|| lacks("dataflow"))?;
                if dataflow == Dataflow::IpgBucket {
                    request.overlap_comm.ok_or_else(|| lacks("overlap_comm"))?;
                    request.contiguous_gradients.ok_or_else(|| lacks("contiguous_gradients"))?;
                    request.reduce_scatter.ok_or_else(|| lacks("reduce_scatter"))?;
                }
                Self::Native(NativeOptions::new(&request, 0, Some(dataflow)))
            }
            Engine::DeepSpeed => Self::DeepSpeed(DeepSpeedOptions {
                config: written.deepspeed_config,
                ..DeepSpeedOptions::new(&request)
            }),
            Engine::Ddp => Self::Ddp(written.ddp.ok_or_else(|| lacks("ddp"))?),
            Engine::Fsdp1 => Self::Fsdp1(written.fsdp1.ok_or_else(|| lacks("fsdp1"))?),
            Engine::Fsdp2 => Self::Fsdp2(written.fsdp2.ok_or_else(|| lacks("fsdp2"))?),
            Engine::Pipeline => Self::Pipeline(written.pipeline.ok_or_else(|| lacks("pipeline"))?),
            Engine::Script => Self::Script(written.script.ok_or_else(|| lacks("script"))?),
            plain => Self::Plain(plain),
        })
    }
}
