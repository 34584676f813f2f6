//! The engines, and the facts about each engine that decide what a request resolves to.
//!
//! [`Traits`] is one row of data for each engine: the defaults that differ, the dtypes in which the engine
//! accumulates and communicates, where it divides, and the shapes that it does not support. The specification, and
//! the proof that its sums are exact, follow from these traits. All other facts about an engine are in the
//! crate `zprobe-engines`, which builds on the specification.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::Written;
use super::{
    Dataflow, DdpOptions, DeepSpeedOptions, Dtype, Fsdp1Options, Fsdp2Options, NativeOptions,
    Optimizer, PipelineOptions, RunSpec, Scale, ScriptOptions, Shape, SpecRequest, Weighting,
    named_enum, pipeline,
};

named_enum! {
    /// The engine under test.
    pub enum Engine {
        /// zprobe's own sharded engine, on libtorch.
        Native = "native",
        /// The DeepSpeed that is installed in a Python environment.
        DeepSpeed = "deepspeed",
        /// PyTorch's `DistributedDataParallel`.
        Ddp = "ddp",
        /// PyTorch's `FullyShardedDataParallel`.
        Fsdp1 = "fsdp1",
        /// PyTorch's `fully_shard`.
        Fsdp2 = "fsdp2",
        /// PyTorch's pipelining schedules.
        Pipeline = "pipeline",
        /// PyTorch's `ZeroRedundancyOptimizer`, over `DistributedDataParallel`.
        ZeroRedundancy = "zero-redundancy",
        /// The engine that the user's own script uses, under `zprobe exec`.
        #[value(skip)]
        #[serde(skip_deserializing)]
        Script = "script",
    }
}

/// The native engine, because it needs no other installation.
impl Default for Engine {
    fn default() -> Self {
        Self::Native
    }
}

/// The engine under test, with the settings that only this engine has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
pub enum EngineSettings {
    /// The settings of zprobe's own engine.
    Native(NativeOptions),
    /// The settings of DeepSpeed.
    DeepSpeed(DeepSpeedOptions),
    /// The settings of PyTorch's `DistributedDataParallel`.
    Ddp(DdpOptions),
    /// The settings of PyTorch's `FullyShardedDataParallel`.
    Fsdp1(Fsdp1Options),
    /// The settings of PyTorch's `fully_shard`.
    Fsdp2(Fsdp2Options),
    /// The settings of PyTorch's pipelining schedules.
    Pipeline(PipelineOptions),
    /// The settings of the user's own script.
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
            Self::Fsdp1(_) => Engine::Fsdp1,
            Self::Fsdp2(_) => Engine::Fsdp2,
            Self::Pipeline(_) => Engine::Pipeline,
            Self::Script(_) => Engine::Script,
            Self::Plain(engine) => *engine,
        }
    }
}

/// The rule for the ZeRO stage that an engine runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// The ZeRO stage that `--stage` chooses; 1 by default.
    Chosen,
    /// Always the stage that is closest to how the engine works.
    Always(u8),
}

impl Staging {
    /// The stage of a run for which no stage was requested.
    pub const fn default(self) -> u8 {
        match self {
            Self::Chosen => 1,
            Self::Always(stage) => stage,
        }
    }
}

/// The use of a DeepSpeed file by an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeepSpeedFile {
    /// Every key of the file is a setting of the run, has no effect on its sums, or is refused.
    Followed,
    /// The file is passed to the engine, which has the last word on the file's keys.
    PassedOn,
    /// The batch sizes and dtypes of the file apply to the run; the engine itself knows no key of the file.
    Unknown,
}

/// The facts about an engine on which a specification depends.
pub struct Traits {
    /// The way in which the engine uses a DeepSpeed configuration file.
    pub deepspeed_file: DeepSpeedFile,
    /// The rule for the ZeRO stage that the engine runs in.
    pub staging: Staging,
    /// The number of seconds without an event after which a rank counts as hung, unless `--timeout` says otherwise.
    pub timeout_s: u64,
    /// True if the ranks of the engine can compute on GPUs.
    pub on_gpus: bool,
    /// True if the specification fully determines what the engine does. Releases of real engines have behaviour
    /// that their settings do not describe in full.
    pub follows_spec: bool,
    /// True if the engine scales the loss of an fp16 model, and skips steps that overflow. PyTorch's engines leave
    /// scaling and skipping to the training loop, which uses `GradScaler` if the run asks for a dynamic scale.
    pub scales_loss: bool,
    /// True if the inner optimizer steps on fp32 copies of narrower parameters.
    pub has_master_weights: bool,
    /// True if a rank has a sum of its own gradients in addition to the gradient that is reduced.
    pub has_accumulator: bool,
    /// The dataflow of a run; `None` for engines whose dataflow cannot be chosen.
    pub(super) dataflow: fn(&SpecRequest, &Sums) -> Option<Dataflow>,
    /// The dtype in which the gradients of a model in this dtype are accumulated, unless `--grad-accum-dtype` says
    /// otherwise.
    pub(super) accumulates_in: fn(&SpecRequest, Dtype) -> Dtype,
    /// The dtype in which gradients are communicated, unless `--comm-dtype` says otherwise; `None` if each release
    /// of the engine chooses its own dtype.
    pub(super) communicates_in: fn(&SpecRequest, &Sums, Option<Dataflow>) -> Option<Dtype>,
    /// True if gradients of a model in the first dtype can be accumulated in the second dtype.
    pub(super) can_accumulate: fn(Dtype, Dtype) -> bool,
    /// The settings that only this engine has, in a run of a model with these shapes.
    pub(super) settings: fn(&SpecRequest, &Sums, Option<Dataflow>, &[Shape]) -> EngineSettings,
    /// True if gradients are communicated before they are divided: see [`RunSpec::divides_last`].
    divides_last: fn(&RunSpec) -> bool,
    /// The reason why the engine does not support an unusual model or loop (a *shape*); `None` if it does.
    pub(super) leaves_no_room: fn(&RunSpec, Shape) -> Option<&'static str>,
}

/// The stage and the dtypes of a run, on which other settings depend.
pub(super) struct Sums {
    /// The resolved ZeRO stage.
    pub(super) stage: u8,
    /// The dtype of the model.
    pub(super) dtype: Dtype,
    /// The dtype in which the gradients of microbatches are accumulated.
    pub(super) accum: Dtype,
}

impl Engine {
    /// The engines that a run can be requested with. The user's script is not among them, because zprobe watches
    /// the script and does not choose it.
    pub const CHOICES: &'static [Engine] = &[
        Engine::Native,
        Engine::DeepSpeed,
        Engine::Ddp,
        Engine::Fsdp1,
        Engine::Fsdp2,
        Engine::Pipeline,
        Engine::ZeroRedundancy,
    ];

    /// The facts about this engine on which a specification depends.
    pub fn traits(self) -> &'static Traits {
        match self {
            Engine::Native => &NATIVE,
            Engine::DeepSpeed => &DEEPSPEED,
            Engine::Ddp => &DDP,
            Engine::Fsdp1 => &FSDP1,
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

    /// True if gradients are communicated before they are divided, so that communicated values grow to `W` times
    /// the average.
    pub fn divides_last(&self) -> bool {
        (self.engine().traits().divides_last)(self)
    }
}

/// The number of seconds that a rank of a real engine may be silent: a busy machine can take a minute to import the
/// engine.
const TIMEOUT_OF_REAL_ENGINES: u64 = 180;

/// The reason why some engines do not support the shape `different-start`.
const NOTHING_BROADCAST: &str = "this engine does not send the parameters of one rank to the others; use --engine ddp or --engine deepspeed";

/// The reason why only some engines support the shape `penalty-backward`.
const NOTHING_BESIDE_FORWARD: &str = "DDP and FSDP reduce only gradients that their own forward \
     prepared, and stage 3's parameters are empty outside of forward; use --engine deepspeed with --stage 0, 1 or 2";

/// The reason why FSDP1 and FSDP2 do not support the shape `bypass`.
const NOTHING_OUTSIDE_OF_FORWARD: &str =
    "outside of forward, the parameters of FSDP are shards that no loss can use; use --engine ddp";
/// The reason why an engine does not support a shape that is about one parameter, if the parameters are split.
const ONLY_A_PART: &str = "with --tensor-parallel, each rank has only a part of the shape's parameter; drop one of the two flags";

static NATIVE: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Followed,
    staging: Staging::Chosen,
    timeout_s: 60,
    on_gpus: true,
    follows_spec: true,
    scales_loss: true,
    has_master_weights: true,
    has_accumulator: true,
    // The dataflow that DeepSpeed would choose, unless the request has a setting of buckets.
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
    // The dtype of the reduced buffer, as in DeepSpeed.
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
        Shape::TupleOutput | Shape::DictOutput => Some(
            "the native engine needs a plain loss, not a tuple or a dict; choose another engine with --engine",
        ),
        Shape::DifferentStart => Some(NOTHING_BROADCAST),
        Shape::WarmUp => {
            Some("the native engine has no scheduler; choose another engine with --engine")
        }
        Shape::UnusedOnOddRanks | Shape::UnusedOnEvenRanks | Shape::ReversedOnOddRanks => Some(
            "the native ranks fill their buckets in the order of their gradients, so they would reduce different \
             buckets; choose another engine with --engine",
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
    // DeepSpeed divides last if it all-reduces whole buckets, unless `prescale_gradients` is set:
    // `allreduce_bucket` in `runtime/engine.py` (stage 0 and `BF16_Optimizer`) and `gradient_reduction_w_predivide`
    // in `runtime/zero/stage_1_and_2.py` (`reduce_scatter: false`). DeepSpeed divides first if gradients go to
    // their owners (`average_tensor`), and always in stage 3 (`__avg_scatter_contiguous_grads`,
    // `reduce_scatter_coalesced`).
    divides_last: |spec| {
        let config = spec.deepspeed_config();
        let is = |pointer, wanted| {
            config.and_then(|config| config.pointer(pointer)) == Some(&Value::Bool(wanted))
        };
        let accumulates = spec.dataflow_of_deepspeed() == Dataflow::Accumulator;
        let all_reduces = all_reduces(spec, is("/zero_optimization/reduce_scatter", false));
        (accumulates || all_reduces) && !is("/prescale_gradients", true)
    },
    leaves_no_room: |spec, shape| match shape {
        Shape::Bypass if spec.stage == 3 => {
            Some("outside of forward, stage 3's parameters are empty; use --stage 2")
        }
        Shape::PenaltyBackward if spec.stage == 3 => Some(NOTHING_BESIDE_FORWARD),
        Shape::LossBackward if spec.stage == 0 && spec.dtype != Dtype::Fp32 => Some(
            "DeepSpeed's optimizers of stage 0 need DeepSpeed's own backward; use --stage 1, 2 or 3, or --dtype fp32",
        ),
        Shape::CoalescedReduction
            if spec.stage == 0 || spec.dataflow_of_deepspeed() == Dataflow::Accumulator =>
        {
            Some(
                "DeepSpeed's coalesce_grad_reduction refuses the optimizer of these settings; use --stage 2 or 3, \
                 or --stage 1 with --grad-accum-dtype bf16",
            )
        }
        Shape::WarmUp if spec.scales_loss() => Some(
            "DeepSpeed's scheduler stands still in a step that overflows; use --dtype bf16 or fp32",
        ),
        Shape::WarmUp if spec.optimizer == Optimizer::Muon => {
            Some("DeepSpeed makes Muon itself, without the scheduler; drop one of the two flags")
        }
        Shape::Experts if spec.stage == 3 => {
            Some("DeepSpeed does not support experts in stage 3; use --stage 0, 1 or 2")
        }
        Shape::Experts if spec.world_size == 1 => Some(
            "a single rank cannot send data to the expert of another rank; use --nproc-per-node 2 or more",
        ),
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
    // DDP accumulates in the gradients of the parameters, which have the dtype of the model.
    accumulates_in: |_, dtype| dtype,
    communicates_in: |request, sums, _| {
        Some(request.comm_hook.map_or(sums.dtype, |hook| hook.dtype(sums.dtype)))
    },
    can_accumulate: keeps_the_range,
    settings: |request, _, _, shapes| EngineSettings::Ddp(DdpOptions::new(request, shapes)),
    divides_last: |_| false,
    leaves_no_room: |spec, shape| match shape {
        Shape::PenaltyBackward => Some(NOTHING_BESIDE_FORWARD),
        Shape::Tied
        | Shape::Bypass
        | Shape::UnusedOnOddRanks
        | Shape::UnusedOnEvenRanks
        | Shape::InfinityOnOneRank
            if spec.model_parallel() > 1 =>
        {
            Some(ONLY_A_PART)
        }
        Shape::DifferentStart if spec.model_parallel() > 1 => Some(
            "with --tensor-parallel, rank 0 does not have the parts of the other ranks; drop one of the two flags",
        ),
        Shape::LateNoSync
            if spec.gradient_accumulation_steps == 1
                && !spec.has_shape(Shape::SeveralBackwards) =>
        {
            Some("no_sync applies to all microbatches of a step but the last; use --ga 2 or more")
        }
        _ => None,
    },
};

/// FSDP1 accumulates whole gradients in the dtype of the computation, as DDP does, unless it reduces every microbatch.
static FSDP1: Traits = Traits {
    staging: Staging::Always(3),
    has_master_weights: true,
    communicates_in: |_, sums, _| Some(sums.dtype),
    can_accumulate: |_, _| true,
    settings: |request, _, _, _| EngineSettings::Fsdp1(Fsdp1Options::new(request)),
    // Before the reduction, FSDP1 divides by a power of two, and after the reduction by the rest.
    divides_last: |_| true,
    leaves_no_room: |spec, shape| match shape {
        Shape::Frozen if spec.fsdp1().is_some_and(|fsdp1| !fsdp1.use_orig_params) => {
            Some("a flat parameter is trained or frozen as a whole; add --use-orig-params true")
        }
        Shape::Bypass => Some(NOTHING_OUTSIDE_OF_FORWARD),
        Shape::PenaltyBackward => Some(NOTHING_BESIDE_FORWARD),
        Shape::DifferentStart => Some(
            "FSDP1 sends the parameters of one rank to the others only on GPUs; use --engine ddp or --engine deepspeed",
        ),
        _ => None,
    },
    ..DDP
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
    // FSDP2 accumulates in the dtype in which it reduces.
    accumulates_in: |request, _| request.comm_dtype.unwrap_or(Dtype::Fp32),
    communicates_in: |_, _, _| Some(Dtype::Fp32),
    can_accumulate: |_, _| true,
    settings: |request, _, _, _| EngineSettings::Fsdp2(Fsdp2Options::new(request)),
    // After the reduction, FSDP2 divides by the odd part of `W`.
    divides_last: |_| true,
    leaves_no_room: |spec, shape| match shape {
        Shape::Tied
        | Shape::UnusedOnOddRanks
        | Shape::UnusedOnEvenRanks
        | Shape::InfinityOnOneRank
            if spec.model_parallel() > 1 =>
        {
            Some(ONLY_A_PART)
        }
        Shape::Bypass => Some(NOTHING_OUTSIDE_OF_FORWARD),
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
    // The stages accumulate in the gradients of the parameters.
    accumulates_in: |_, dtype| dtype,
    communicates_in: |_, sums, _| Some(sums.dtype),
    can_accumulate: keeps_the_range,
    settings: |request, _, _, _| EngineSettings::Pipeline(PipelineOptions::new(request)),
    divides_last: |_| false,
    leaves_no_room: pipeline::leaves_no_room,
};

/// DDP reduces the gradients. Each rank then updates some of the parameters, as in ZeRO stage 1.
static ZERO_REDUNDANCY: Traits = Traits {
    staging: Staging::Always(1),
    communicates_in: |_, sums, _| Some(sums.dtype),
    settings: |_, _, _, _| EngineSettings::Plain(Engine::ZeroRedundancy),
    ..DDP
};

/// The traits of the user's script that no request specifies. The ranks of the script find out all other facts.
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

/// True if a ZeRO engine all-reduces whole buckets and then divides them. `scatters_not` is true if the
/// configuration of the engine switches reduce-scatter off.
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
