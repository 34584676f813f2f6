//! Settings that only some engines have: how a request fills them in, and their form in traces and
//! reports.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::deepspeed::Member;
use super::{
    Dataflow, DdpOptions, Engine, EngineSettings, Fault, Fsdp2Options, PipelineOptions, RunSpec,
    ScriptOptions, SpecRequest, named_enum,
};

/// Settings of zprobe's own engine.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeOptions {
    /// Place where gradients wait between backward and reduction.
    pub flow: Flow,
    /// Most elements that one all-gather of parameters returns.
    pub allgather_bucket_size: usize,
    /// A deliberate fault, if any.
    pub inject: Option<Fault>,
}

/// A dataflow of the native engine, with the settings that belong to it alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Flow {
    /// [`Dataflow::Accumulator`]
    Accumulator,
    /// [`Dataflow::IpgBucket`]
    IpgBucket(Buckets),
}

/// Settings of IPG buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// True if reduction overlaps backward.
    pub overlap_comm: bool,
    /// True if gradients are copied to a contiguous buffer as they are produced.
    pub contiguous_gradients: bool,
    /// True if gradients are reduce-scattered instead of all-reduced.
    pub reduce_scatter: bool,
}

/// Settings of DeepSpeed. All fields but the configuration are what flags asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepSpeedOptions {
    /// Configuration of the engine: the user's file as it is, or the one that follows from the
    /// flags; none only in a trace that does not contain it.
    pub config: Option<Value>,
    /// `zero_optimization.overlap_comm`
    pub overlap_comm: Option<bool>,
    /// `zero_optimization.contiguous_gradients`
    pub contiguous_gradients: Option<bool>,
    /// `zero_optimization.reduce_scatter`
    pub reduce_scatter: Option<bool>,
    /// `bf16.immediate_grad_update`
    pub immediate_grad_update: Option<bool>,
    /// Loss scale that the training loop sets by itself (the optimizer's `override_loss_scale`).
    pub override_loss_scale: Option<f64>,
    /// Keys of the configuration that have no flag of their own.
    pub set: Vec<Member>,
    /// Number of ranks that each have a part of the same sequences (Ulysses); 1 for none.
    pub sequence_parallel: usize,
    /// The way in which DeepSpeed is told of these ranks.
    pub sequence_groups: SequenceGroups,
}

named_enum! {
    /// The way in which DeepSpeed is told which ranks have parts of the same sequences.
    pub enum SequenceGroups {
        /// By an object with the groups (`mpu`): DeepSpeed's own `parallel_state_sp`.
        Mpu = "mpu",
        /// By the sides of a device mesh (`mesh_param`).
        Mesh = "mesh",
    }
}

impl NativeOptions {
    /// The settings that a request asks for in `stage`. Defaults are those of DeepSpeed
    /// (`DeepSpeedZeroConfig` in `runtime/zero/config.py`).
    pub(super) fn new(request: &SpecRequest, stage: u8, dataflow: Option<Dataflow>) -> Self {
        let asked = request.or_default(Engine::Native);
        Self {
            flow: match dataflow {
                Some(Dataflow::IpgBucket) => Flow::IpgBucket(Buckets {
                    overlap_comm: request.overlap_comm.unwrap_or(stage == 3),
                    contiguous_gradients: request.contiguous_gradients.unwrap_or(true),
                    reduce_scatter: request.reduce_scatter.unwrap_or(true),
                }),
                _ => Flow::Accumulator,
            },
            allgather_bucket_size: asked.allgather_bucket_size(),
            inject: request.inject,
        }
    }

    /// Place where gradients wait between backward and reduction.
    fn dataflow(&self) -> Dataflow {
        match self.flow {
            Flow::Accumulator => Dataflow::Accumulator,
            Flow::IpgBucket(_) => Dataflow::IpgBucket,
        }
    }

    /// Settings of IPG buckets, where the dataflow has some.
    fn buckets(&self) -> Option<Buckets> {
        if let Flow::IpgBucket(buckets) = self.flow { Some(buckets) } else { None }
    }
}

impl DeepSpeedOptions {
    /// The settings that a request asks for, without the configuration: that is filled in last,
    /// because it follows from the other settings.
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
    /// Settings of the native engine; none for other engines.
    pub fn native(&self) -> Option<&NativeOptions> {
        if let EngineSettings::Native(options) = &self.settings { Some(options) } else { None }
    }

    /// Settings of DeepSpeed; none for other engines.
    pub fn deepspeed(&self) -> Option<&DeepSpeedOptions> {
        if let EngineSettings::DeepSpeed(options) = &self.settings { Some(options) } else { None }
    }

    /// Settings of DDP; none for other engines.
    pub fn ddp(&self) -> Option<DdpOptions> {
        if let EngineSettings::Ddp(options) = self.settings { Some(options) } else { None }
    }

    /// Settings of FSDP2; none for other engines.
    pub fn fsdp2(&self) -> Option<Fsdp2Options> {
        if let EngineSettings::Fsdp2(options) = self.settings { Some(options) } else { None }
    }

    /// The replica of the model that a rank holds a part of, where FSDP2 shards several: each is held by ranks that
    /// follow one another. None where there is one.
    pub fn replica(&self, rank: usize) -> Option<usize> {
        let replicas = self.fsdp2()?.replicas;
        (replicas > 1).then(|| rank / (self.world_size / replicas))
    }

    /// Settings of pipelining schedules; none for other engines.
    pub fn pipeline(&self) -> Option<PipelineOptions> {
        if let EngineSettings::Pipeline(options) = self.settings { Some(options) } else { None }
    }

    /// Number of parts of the model of which each rank holds one: the ranks that follow one another have the parts of
    /// one model. 1 where every rank holds all parameters.
    pub fn model_parallel(&self) -> usize {
        match self.settings {
            EngineSettings::Fsdp2(fsdp2) => fsdp2.tensor_parallel,
            EngineSettings::Pipeline(pipeline) => self.world_size / pipeline.pipelines,
            _ => 1,
        }
    }

    /// Configuration of the real DeepSpeed; none for other engines.
    pub fn deepspeed_config(&self) -> Option<&Value> {
        self.deepspeed()?.config.as_ref()
    }

    /// Place where gradients wait between backward and reduction, in the native engine; none for
    /// the other engines, which have dataflows of their own.
    pub fn dataflow(&self) -> Option<Dataflow> {
        self.native().map(NativeOptions::dataflow)
    }

    /// Most elements that one all-gather of parameters returns; none where that is left to the engine.
    pub fn allgather_bucket_size(&self) -> Option<usize> {
        Some(self.native()?.allgather_bucket_size)
    }

    /// A deliberate fault of the native engine, if any.
    pub fn inject(&self) -> Option<Fault> {
        self.native()?.inject
    }

    /// True if reduction overlaps backward. This and the next three are none where they are left to
    /// the engine, or have no meaning there.
    pub fn overlap_comm(&self) -> Option<bool> {
        let buckets =
            self.native().and_then(NativeOptions::buckets).map(|buckets| buckets.overlap_comm);
        buckets.or_else(|| self.deepspeed()?.overlap_comm)
    }

    /// True if gradients are copied to a contiguous buffer as they are produced.
    pub fn contiguous_gradients(&self) -> Option<bool> {
        let buckets = self
            .native()
            .and_then(NativeOptions::buckets)
            .map(|buckets| buckets.contiguous_gradients);
        buckets.or_else(|| self.deepspeed()?.contiguous_gradients)
    }

    /// True if gradients are reduce-scattered instead of all-reduced.
    pub fn reduce_scatter(&self) -> Option<bool> {
        let buckets =
            self.native().and_then(NativeOptions::buckets).map(|buckets| buckets.reduce_scatter);
        buckets.or_else(|| self.deepspeed()?.reduce_scatter)
    }

    /// Keys of DeepSpeed's configuration that flags have set and that have no flag of their own.
    pub fn deepspeed_set(&self) -> Vec<Member> {
        self.deepspeed().map(|deepspeed| deepspeed.set.clone()).unwrap_or_default()
    }

    /// True if `BF16_Optimizer` fills its accumulator from hooks.
    pub fn immediate_grad_update(&self) -> Option<bool> {
        self.deepspeed()?.immediate_grad_update
    }

    /// Loss scale that the training loop sets by itself.
    pub fn override_loss_scale(&self) -> Option<f64> {
        self.deepspeed()?.override_loss_scale
    }
}

named_enum! {
    /// Place where the optimizer's states live.
    pub enum Offload {
        /// With the model.
        None = "none",
        /// In the memory of the host (DeepSpeed's `offload_optimizer`).
        Cpu = "cpu",
    }
}

named_enum! {
    /// Extent to which the engine is observed.
    pub enum Observation {
        /// Every point of the gradient's journey that can be seen in the engine.
        Full = "full",
        /// Only the parameters after each step: nothing is wrapped, nothing is hooked.
        Outcome = "outcome",
    }
}

/// Scale of the loss of an fp16 model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum LossScale {
    /// A scale that never changes.
    Static {
        /// The scale.
        scale: f64,
    },
    /// A scale that is halved when a gradient overflows, and doubled after many steps without
    /// overflow.
    Dynamic {
        /// Exponent of the first scale, which is 2 to this power (DeepSpeed's
        /// `initial_scale_power`).
        initial_power: u32,
    },
}

impl LossScale {
    /// A dynamic scale, low enough that coded gradients of many ranks do not overflow.
    pub const DEFAULT: LossScale = LossScale::Dynamic { initial_power: 6 };

    /// The scale of the first step.
    pub fn initial(self) -> f64 {
        match self {
            LossScale::Static { scale } => scale,
            LossScale::Dynamic { initial_power } => f64::from(initial_power).exp2(),
        }
    }
}

/// Form of the settings in traces and reports: those of all engines side by side, and none for
/// settings that the engine does not have.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
pub(super) struct Written {
    /// The engine under test.
    #[serde(deserialize_with = "any_engine")]
    #[schemars(schema_with = "any_engine_schema")]
    engine: Engine,
    /// Place where gradients wait between backward and reduction, in the native engine; none for
    /// the other engines, which have dataflows of their own.
    dataflow: Option<Dataflow>,
    /// Most elements that one all-gather of parameters returns (DeepSpeed's `allgather_bucket_size`);
    /// none where that is left to the engine.
    #[serde(default)]
    allgather_bucket_size: Option<usize>,
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
    /// Loss scale that the training loop sets by itself (DeepSpeed's `override_loss_scale`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    override_loss_scale: Option<f64>,
    /// Number of ranks that each have a part of the same sequences; none for engines other than DeepSpeed, and in
    /// older traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence_parallel: Option<usize>,
    /// The way in which DeepSpeed is told of these ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sequence_groups: Option<SequenceGroups>,
    /// Keys of DeepSpeed's configuration that flags have set and that have no flag of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deepspeed_set: Vec<Member>,
    /// Settings of DDP; none for other engines.
    ddp: Option<DdpOptions>,
    /// Settings of FSDP2; none for other engines.
    fsdp2: Option<Fsdp2Options>,
    /// Settings of pipelining schedules; none for other engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pipeline: Option<PipelineOptions>,
    /// The user's own training script; none for runs of an engine on zprobe's own model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    script: Option<ScriptOptions>,
    /// Configuration of the real DeepSpeed: the user's file as it is, or the one that follows from
    /// the flags; none for other engines.
    deepspeed_config: Option<Value>,
    /// A deliberate fault, if any.
    inject: Option<Fault>,
}

/// Reads the name of an engine; that of a script, which no file of a user may ask for, is one too.
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
                let buckets = native.buckets();
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
            EngineSettings::Fsdp2(fsdp2) => Self { fsdp2: Some(fsdp2), ..none },
            EngineSettings::Pipeline(pipeline) => Self { pipeline: Some(pipeline), ..none },
            EngineSettings::Script(script) => Self { script: Some(script), ..none },
            EngineSettings::Plain(_) => none,
        }
    }
}

impl TryFrom<Written> for EngineSettings {
    type Error = String;

    /// Reads settings back; those of other engines are left out.
    fn try_from(written: Written) -> Result<Self, String> {
        let Written { engine, .. } = written;
        let lacks = |name: &str| format!("a run of the {engine} engine without `{name}`");
        // Settings that traces have always had are there; others may be older than the trace.
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
            Engine::Fsdp2 => Self::Fsdp2(written.fsdp2.ok_or_else(|| lacks("fsdp2"))?),
            Engine::Pipeline => Self::Pipeline(written.pipeline.ok_or_else(|| lacks("pipeline"))?),
            Engine::Script => Self::Script(written.script.ok_or_else(|| lacks("script"))?),
            plain => Self::Plain(plain),
        })
    }
}
