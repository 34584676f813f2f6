//! The engines, and the facts about each that decide what a request resolves to.
//!
//! [`Traits`] is one row of data for each engine: the defaults that differ, the dtypes in which it
//! adds up and communicates, where it divides, and the shapes that it cannot have. The
//! specification and the proof that its sums are exact follow from them. All other facts about an
//! engine are in the crate `zprobe-engines`, which builds on the specification.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::Written;
use super::{
    Dataflow, DdpOptions, DeepSpeedOptions, Dtype, Fsdp2Options, NativeOptions, PipelineOptions,
    RunSpec, Scale, ScriptOptions, Shape, SpecRequest, Weighting, named_enum, pipeline,
};

named_enum! {
    /// The engine under test.
    pub enum Engine {
        /// zprobe's own sharded engine, on libtorch.
        Native = "native",
        /// The DeepSpeed of a Python environment.
        DeepSpeed = "deepspeed",
        /// PyTorch's `DistributedDataParallel`.
        Ddp = "ddp",
        /// PyTorch's `fully_shard`.
        Fsdp2 = "fsdp2",
        /// PyTorch's pipelining schedules.
        Pipeline = "pipeline",
        /// PyTorch's `ZeroRedundancyOptimizer`, over `DistributedDataParallel`.
        ZeroRedundancy = "zero-redundancy",
        /// Whatever trains in the user's own script, under `zprobe exec`.
        #[value(skip)]
        #[serde(skip_deserializing)]
        Script = "script",
    }
}

/// The native engine, which needs no other installation.
impl Default for Engine {
    fn default() -> Self {
        Self::Native
    }
}

/// The engine under test, with the settings that it alone has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
pub enum EngineSettings {
    /// zprobe's own engine.
    Native(NativeOptions),
    /// DeepSpeed.
    DeepSpeed(DeepSpeedOptions),
    /// PyTorch's `DistributedDataParallel`.
    Ddp(DdpOptions),
    /// PyTorch's `fully_shard`.
    Fsdp2(Fsdp2Options),
    /// PyTorch's pipelining schedules.
    Pipeline(PipelineOptions),
    /// The user's own script.
    Script(ScriptOptions),
    /// An engine without settings of its own.
    Plain(Engine),
}

impl EngineSettings {
    /// The engine that has these settings.
    pub fn engine(&self) -> Engine {
        match self {
            Self::Native(_) => Engine::Native,
            Self::DeepSpeed(_) => Engine::DeepSpeed,
            Self::Ddp(_) => Engine::Ddp,
            Self::Fsdp2(_) => Engine::Fsdp2,
            Self::Pipeline(_) => Engine::Pipeline,
            Self::Script(_) => Engine::Script,
            Self::Plain(engine) => *engine,
        }
    }
}

/// Rule for the stage that an engine runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// The ZeRO stage that `--stage` chooses; 1 by default.
    Chosen,
    /// Always the stage that comes closest to the way in which the engine works.
    Always(u8),
}

impl Staging {
    /// Stage of a run for which no stage was asked.
    pub const fn default(self) -> u8 {
        match self {
            Self::Chosen => 1,
            Self::Always(stage) => stage,
        }
    }
}

/// The use that an engine makes of a DeepSpeed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeepSpeedFile {
    /// Every key is either a setting of the run or refused.
    Followed,
    /// The file is handed to the engine, which has the last word on its keys.
    PassedOn,
    /// Batch sizes and dtypes of the file hold for the run; the engine knows none of its keys.
    Unknown,
}

/// The facts about an engine that a specification follows from.
pub struct Traits {
    /// The use that the engine makes of a DeepSpeed file.
    pub deepspeed_file: DeepSpeedFile,
    /// Rule for the stage that the engine runs in.
    pub staging: Staging,
    /// Seconds without an event after which a rank counts as hung, unless `--timeout` says otherwise.
    pub timeout_s: u64,
    /// True if the ranks of the engine can compute on GPUs.
    pub on_gpus: bool,
    /// True if the specification alone decides what the engine does. Releases of real engines have
    /// behaviour that their settings do not describe in full.
    pub follows_spec: bool,
    /// True if the engine scales the loss of an fp16 model, and skips steps that overflow.
    /// PyTorch's engines leave both to the training loop.
    pub scales_loss: bool,
    /// True if the inner optimizer steps on fp32 copies of narrower parameters.
    pub has_master_weights: bool,
    /// True if a rank has a sum of its own gradients beside the gradient that is reduced.
    pub has_accumulator: bool,
    /// The dataflow of a run; none for engines in which it cannot be chosen.
    pub(super) dataflow: fn(&SpecRequest, &Sums) -> Option<Dataflow>,
    /// The dtype in which microbatches of a model in this dtype are added up, unless
    /// `--grad-accum-dtype` says otherwise.
    pub(super) accumulates_in: fn(&SpecRequest, Dtype) -> Dtype,
    /// The dtype in which gradients cross the ranks, unless `--comm-dtype` says otherwise; none
    /// where each release of the engine chooses by itself.
    pub(super) communicates_in: fn(&SpecRequest, &Sums, Option<Dataflow>) -> Option<Dtype>,
    /// True if gradients of a model in the first dtype can be added up in the second.
    pub(super) can_accumulate: fn(Dtype, Dtype) -> bool,
    /// The settings that this engine alone has, in a run of a model with these shapes.
    pub(super) settings: fn(&SpecRequest, &Sums, Option<Dataflow>, &[Shape]) -> EngineSettings,
    /// True if gradients cross the ranks undivided: see [`RunSpec::divides_last`].
    divides_last: fn(&RunSpec) -> bool,
    /// Reason why a run cannot have a shape; none if it can.
    pub(super) leaves_no_room: fn(&RunSpec, Shape) -> Option<&'static str>,
}

/// Stage and dtypes of a run, on which other settings depend.
pub(super) struct Sums {
    /// The resolved stage.
    pub(super) stage: u8,
    /// Dtype of the model.
    pub(super) dtype: Dtype,
    /// Dtype in which microbatches are added up.
    pub(super) accum: Dtype,
}

impl Engine {
    /// The engines that a run can be asked for. The user's script is none of them: it is watched and
    /// not chosen.
    pub const CHOICES: &'static [Engine] = &[
        Engine::Native,
        Engine::DeepSpeed,
        Engine::Ddp,
        Engine::Fsdp2,
        Engine::Pipeline,
        Engine::ZeroRedundancy,
    ];

    /// The facts about this engine that a specification follows from.
    pub fn traits(self) -> &'static Traits {
        match self {
            Engine::Native => &NATIVE,
            Engine::DeepSpeed => &DEEPSPEED,
            Engine::Ddp => &DDP,
            Engine::Fsdp2 => &FSDP2,
            Engine::Pipeline => &PIPELINE,
            Engine::ZeroRedundancy => &ZERO_REDUNDANCY,
            Engine::Script => &SCRIPT,
        }
    }
}

impl RunSpec {
    /// The engine under test.
    pub fn engine(&self) -> Engine {
        self.settings.engine()
    }

    /// True if gradients cross the ranks undivided, so that values on the wire grow to `W` times
    /// the average.
    pub fn divides_last(&self) -> bool {
        (self.engine().traits().divides_last)(self)
    }
}

/// Seconds that a rank of a real engine may be silent: a busy machine can take a minute to import
/// the engine.
const TIMEOUT_OF_REAL_ENGINES: u64 = 180;

/// Reason why some engines do not have the shape `different-start`.
const NOTHING_BROADCAST: &str =
    "it sends no rank's parameters to the others; use --engine ddp or --engine deepspeed";

/// Reason why only some engines have the shape `penalty-backward`.
const NOTHING_BESIDE_FORWARD: &str = "DDP and FSDP2 reduce only what their own forward \
     prepared, and stage 3's parameters are empty outside of it; use --engine deepspeed with --stage 0, 1 or 2";

static NATIVE: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Followed,
    staging: Staging::Chosen,
    timeout_s: 60,
    on_gpus: true,
    follows_spec: true,
    scales_loss: true,
    has_master_weights: true,
    has_accumulator: true,
    // The dataflow that DeepSpeed would choose, unless a setting of buckets was asked for.
    dataflow: |request, sums| {
        let wants_buckets = request.overlap_comm.is_some()
            || request.contiguous_gradients.is_some()
            || request.reduce_scatter.is_some()
            || request.reduce_bucket_size.is_some();
        let chosen = if wants_buckets {
            Dataflow::IpgBucket
        } else {
            Dataflow::of_deepspeed(sums.stage, sums.dtype, sums.accum, request.offload)
        };
        Some(request.dataflow.unwrap_or(chosen))
    },
    accumulates_in: |_, _| Dtype::Fp32,
    // The dtype of the buffer that is reduced, as in DeepSpeed.
    communicates_in: |_, sums, dataflow| {
        let accumulates = dataflow == Some(Dataflow::Accumulator);
        Some(if accumulates { sums.accum } else { sums.dtype })
    },
    can_accumulate: |model, accum| accum == model || accum == Dtype::Fp32,
    settings: |request, sums, dataflow, _| {
        EngineSettings::Native(NativeOptions::new(request, sums.stage, dataflow))
    },
    divides_last: |spec| {
        let accumulates = spec.dataflow() == Some(Dataflow::Accumulator);
        accumulates || all_reduces(spec, spec.reduce_scatter() == Some(false))
    },
    leaves_no_room: |_, shape| match shape {
        Shape::TupleOutput | Shape::DictOutput => {
            Some("the native engine is handed the loss itself; choose another with --engine")
        }
        Shape::DifferentStart => Some(NOTHING_BROADCAST),
        Shape::UnusedOnOddRanks | Shape::UnusedOnEvenRanks | Shape::ReversedOnOddRanks => Some(
            "the native ranks fill their buckets as gradients come, so that they would not reduce the same \
             ones; choose another with --engine",
        ),
        _ => None,
    },
};

static DEEPSPEED: Traits = Traits {
    deepspeed_file: DeepSpeedFile::PassedOn,
    staging: Staging::Chosen,
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: true,
    follows_spec: false,
    scales_loss: true,
    has_master_weights: true,
    has_accumulator: true,
    dataflow: |_, _| None,
    accumulates_in: |_, _| Dtype::Fp32,
    communicates_in: |_, _, _| None,
    can_accumulate: keeps_the_range,
    settings: |request, _, _, _| EngineSettings::DeepSpeed(DeepSpeedOptions::new(request)),
    // DeepSpeed divides last where it all-reduces whole buckets, unless `prescale_gradients` is
    // set: `allreduce_bucket` in `runtime/engine.py` (stage 0 and `BF16_Optimizer`) and
    // `gradient_reduction_w_predivide` in `runtime/zero/stage_1_and_2.py` (`reduce_scatter: false`).
    // Where gradients go to their owners (`average_tensor`), and always in stage 3
    // (`__avg_scatter_contiguous_grads`, `reduce_scatter_coalesced`), it divides first.
    divides_last: |spec| {
        let config = spec.deepspeed_config();
        let is = |pointer, wanted| {
            config.and_then(|config| config.pointer(pointer)) == Some(&Value::Bool(wanted))
        };
        let dataflow = Dataflow::of_deepspeed(
            spec.stage,
            spec.dtype,
            spec.grad_accum_dtype,
            Some(spec.offload),
        );
        let accumulates = dataflow == Dataflow::Accumulator;
        let all_reduces = all_reduces(spec, is("/zero_optimization/reduce_scatter", false));
        (accumulates || all_reduces) && !is("/prescale_gradients", true)
    },
    leaves_no_room: |spec, shape| match shape {
        Shape::Bypass if spec.stage == 3 => {
            Some("outside of forward, stage 3's parameters are empty; use --stage 2")
        }
        Shape::PenaltyBackward if spec.stage == 3 => Some(NOTHING_BESIDE_FORWARD),
        Shape::LossBackward if spec.stage == 0 && spec.dtype != Dtype::Fp32 => Some(
            "DeepSpeed's optimizers of stage 0 want its own backward; use --stage 1, 2 or 3, or --dtype fp32",
        ),
        Shape::CoalescedReduction
            if spec.stage == 0
                || Dataflow::of_deepspeed(
                    spec.stage,
                    spec.dtype,
                    spec.grad_accum_dtype,
                    Some(spec.offload),
                ) == Dataflow::Accumulator =>
        {
            Some(
                "DeepSpeed's coalesce_grad_reduction refuses these optimizers; use --stage 2 or 3, or --stage 1 \
                 with --grad-accum-dtype bf16",
            )
        }
        Shape::Experts if spec.stage == 3 => {
            Some("DeepSpeed has no experts in stage 3; use --stage 0, 1 or 2")
        }
        Shape::Experts if spec.world_size == 1 => {
            Some("a single rank sends no data to another's expert; use --nproc-per-node 2 or more")
        }
        _ => None,
    },
};

const DDP: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Unknown,
    staging: Staging::Always(0),
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: true,
    follows_spec: false,
    scales_loss: false,
    has_master_weights: false,
    has_accumulator: false,
    dataflow: |_, _| None,
    // DDP adds up in the gradients of the parameters, which have the dtype of the model.
    accumulates_in: |_, dtype| dtype,
    communicates_in: |request, sums, _| {
        Some(request.comm_hook.map_or(sums.dtype, |hook| hook.dtype(sums.dtype)))
    },
    can_accumulate: keeps_the_range,
    settings: |request, _, _, shapes| EngineSettings::Ddp(DdpOptions::new(request, shapes)),
    divides_last: |_| false,
    leaves_no_room: |spec, shape| match shape {
        Shape::PenaltyBackward => Some(NOTHING_BESIDE_FORWARD),
        Shape::LateNoSync
            if spec.gradient_accumulation_steps == 1
                && !spec.has_shape(Shape::SeveralBackwards) =>
        {
            Some("no_sync is for all but the last microbatch of a step; use --ga 2 or more")
        }
        _ => None,
    },
};

static FSDP2: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Unknown,
    staging: Staging::Always(3),
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: true,
    follows_spec: false,
    scales_loss: false,
    has_master_weights: true,
    has_accumulator: true,
    dataflow: |_, _| None,
    // FSDP2 adds up in the dtype that it reduces in.
    accumulates_in: |request, _| request.comm_dtype.unwrap_or(Dtype::Fp32),
    communicates_in: |_, _, _| Some(Dtype::Fp32),
    can_accumulate: |_, _| true,
    settings: |request, _, _, _| EngineSettings::Fsdp2(Fsdp2Options::new(request)),
    // The division after the reduction is by the odd part of `W`.
    divides_last: |_| true,
    leaves_no_room: |spec, shape| match shape {
        Shape::Tied
        | Shape::UnusedOnOddRanks
        | Shape::UnusedOnEvenRanks
        | Shape::InfinityOnOneRank
            if spec.model_parallel() > 1 =>
        {
            Some(
                "with --tensor-parallel each rank has a part of the parameter that it is about; drop one of the two",
            )
        }
        Shape::Bypass => Some(
            "outside of forward, FSDP2's parameters are shards that no loss can use; use --engine \
             ddp",
        ),
        Shape::PenaltyBackward => Some(NOTHING_BESIDE_FORWARD),
        Shape::DifferentStart => Some(NOTHING_BROADCAST),
        _ => None,
    },
};

static PIPELINE: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Unknown,
    staging: Staging::Always(0),
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: false,
    follows_spec: false,
    scales_loss: false,
    has_master_weights: false,
    has_accumulator: false,
    dataflow: |_, _| None,
    // Stages add up in the gradients of the parameters.
    accumulates_in: |_, dtype| dtype,
    communicates_in: |_, sums, _| Some(sums.dtype),
    can_accumulate: keeps_the_range,
    settings: |request, _, _, _| EngineSettings::Pipeline(PipelineOptions::new(request)),
    divides_last: |_| false,
    leaves_no_room: pipeline::leaves_no_room,
};

/// DDP reduces the gradients. Each rank then steps with some parameters, as in ZeRO's stage 1.
static ZERO_REDUNDANCY: Traits = Traits {
    staging: Staging::Always(1),
    communicates_in: |_, sums, _| Some(sums.dtype),
    settings: |_, _, _, _| EngineSettings::Plain(Engine::ZeroRedundancy),
    ..DDP
};

/// Facts of the user's script, which no request leads to: its ranks find out the others.
static SCRIPT: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Unknown,
    staging: Staging::Always(0),
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: true,
    follows_spec: false,
    scales_loss: false,
    has_master_weights: false,
    has_accumulator: false,
    dataflow: |_, _| None,
    accumulates_in: |_, dtype| dtype,
    communicates_in: |_, _, _| None,
    can_accumulate: |_, _| true,
    settings: |_, _, _, _| {
        EngineSettings::Script(ScriptOptions {
            observe: None,
            command: Vec::new(),
            dry: false,
            weighting: Weighting::Any,
            scale: Scale::Mean,
            reserved: None,
        })
    },
    divides_last: |_| true,
    leaves_no_room: |_, _| Some("a script trains its own model"),
};

/// True if a ZeRO engine all-reduces whole buckets and then divides them. `scatters_not` is true if
/// its configuration has reduce-scatter switched off.
fn all_reduces(spec: &RunSpec, scatters_not: bool) -> bool {
    spec.stage == 0 || (spec.stage < 3 && scatters_not)
}

/// True if sums in the dtype `accum` can hold gradients in the dtype `model`.
fn keeps_the_range(model: Dtype, accum: Dtype) -> bool {
    !(accum == Dtype::Bf16 && model == Dtype::Fp32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::Offload;

    fn divides_last(engine: Engine, stage: u8, request: SpecRequest) -> bool {
        let request = SpecRequest { engine: Some(engine), stage: Some(stage), ..request };
        request.resolve().expect("a valid request").divides_last()
    }

    #[test]
    fn the_settings_of_every_engine_are_read_back_from_a_trace() {
        for &engine in Engine::CHOICES {
            let request = SpecRequest { engine: Some(engine), ..SpecRequest::default() };
            let settings = request.resolve().expect("a valid request").settings;
            let written = serde_json::to_value(&settings).expect("JSON");
            let read: EngineSettings = serde_json::from_value(written).expect("the settings");
            assert_eq!(read, settings, "{engine}");
        }
    }

    #[test]
    fn only_an_all_reduce_of_everything_divides_last_and_never_in_stage_three() {
        for engine in [Engine::Native, Engine::DeepSpeed] {
            let stages = |reduce_scatter| {
                let request = SpecRequest {
                    dtype: Some(Dtype::Fp32),
                    reduce_scatter: Some(reduce_scatter),
                    ..SpecRequest::default()
                };
                [0, 1, 2, 3].map(|stage| divides_last(engine, stage, request.clone()))
            };
            assert_eq!(stages(true), [true, false, false, false], "{engine}");
            assert_eq!(stages(false), [true, true, true, false], "{engine}");
        }
    }

    #[test]
    fn the_accumulator_divides_last_and_offload_does_away_with_it() {
        for engine in [Engine::Native, Engine::DeepSpeed] {
            let offload =
                |offload| SpecRequest { offload: Some(offload), ..SpecRequest::default() };
            assert!(divides_last(engine, 1, offload(Offload::None)), "{engine}");
            assert!(!divides_last(engine, 1, offload(Offload::Cpu)), "{engine}");
        }
    }

    #[test]
    fn deepspeed_divides_first_where_it_is_told_to_prescale() {
        let file = json!({"prescale_gradients": true, "zero_optimization": {"stage": 0}});
        let request = SpecRequest { deepspeed_config: Some(file), ..SpecRequest::default() };
        assert!(!divides_last(Engine::DeepSpeed, 0, request));
    }
}
