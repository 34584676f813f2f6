//! The engines, and the facts about each that decide what a request resolves to.
//!
//! [`Traits`] is one row of data for each engine: the defaults that differ, the dtypes in which it adds
//! up and communicates, where it divides, and the shapes that it has no place for. From them follow the
//! specification and the proof that its sums are exact. Everything else that is known of an engine
//! stands in its room, [`crate::engines`], which builds on the specification.

use serde_json::Value;

use super::{
    Buckets, Dataflow, DdpOptions, DeepSpeedOptions, Dtype, Flow, Fsdp2Options, NativeOptions,
    RunSpec, Shape, SpecRequest, named_enum,
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
    }
}

/// The native engine, which needs no other installation.
impl Default for Engine {
    fn default() -> Self {
        Self::Native
    }
}

/// The engine under test, with the settings that it alone has.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineSettings {
    /// zprobe's own engine.
    Native(NativeOptions),
    /// DeepSpeed.
    DeepSpeed(DeepSpeedOptions),
    /// PyTorch's `DistributedDataParallel`.
    Ddp(DdpOptions),
    /// PyTorch's `fully_shard`.
    Fsdp2(Fsdp2Options),
}

/// The stage that an engine runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// A ZeRO stage that `--stage` chooses; 1 if it does not.
    Chosen,
    /// The stage that comes closest to how the engine always works.
    Always(u8),
}

impl Staging {
    /// The stage of a run for which none was asked.
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
    /// Every key is a setting of a run, or refused.
    Followed,
    /// It is handed to the engine, which has the last word on its keys.
    PassedOn,
    /// What it says of the batch and of dtypes holds for the run; the engine knows none of its keys.
    Unknown,
}

/// The facts about an engine that a specification follows from.
pub struct Traits {
    /// The use that it makes of a DeepSpeed file.
    pub deepspeed_file: DeepSpeedFile,
    /// The stage that it runs in.
    pub staging: Staging,
    /// Seconds without an event after which a rank counts as hung, unless `--timeout` says otherwise.
    pub timeout_s: u64,
    /// Whether its ranks can compute on GPUs.
    pub on_gpus: bool,
    /// Whether the specification alone decides what it does. Releases of real engines have ways of
    /// their own, which their settings do not say in full.
    pub follows_spec: bool,
    /// Whether it scales the loss of an fp16 model, and skips steps that overflow. PyTorch's engines
    /// leave both to the training loop.
    pub scales_loss: bool,
    /// Whether the inner optimizer steps on fp32 copies of narrower parameters.
    pub has_master_weights: bool,
    /// Whether a rank has a sum of its own gradients beside the gradient that is reduced.
    pub has_accumulator: bool,
    /// The dataflow of a run, for engines in which it can be chosen.
    pub(super) dataflow: fn(&SpecRequest, &Sums) -> Option<Dataflow>,
    /// The dtype in which microbatches are added up, of a model in this dtype; unless
    /// `--grad-accum-dtype` says otherwise.
    pub(super) accumulates_in: fn(&SpecRequest, Dtype) -> Dtype,
    /// The dtype in which gradients cross the ranks, unless `--comm-dtype` says otherwise; none where
    /// a release chooses by itself.
    pub(super) communicates_in: fn(&SpecRequest, &Sums, Option<Dataflow>) -> Option<Dtype>,
    /// Whether gradients of a model in the first dtype can be added up in the second.
    pub(super) can_accumulate: fn(Dtype, Dtype) -> bool,
    /// The settings that it alone has, in a run of a model with these shapes.
    pub(super) settings: fn(&SpecRequest, &Sums, Option<Dataflow>, &[Shape]) -> EngineSettings,
    /// Whether gradients cross the ranks undivided: see [`RunSpec::divides_last`].
    divides_last: fn(&RunSpec) -> bool,
    /// Why a shape cannot be had in a run; none if it can.
    pub(super) leaves_no_room: fn(&RunSpec, Shape) -> Option<&'static str>,
}

/// The dtypes and the stage on which others depend.
pub(super) struct Sums {
    /// The resolved stage.
    pub(super) stage: u8,
    /// Dtype of the model.
    pub(super) dtype: Dtype,
    /// Dtype in which microbatches are added up.
    pub(super) accum: Dtype,
}

impl Engine {
    /// The facts about this engine that a specification follows from.
    pub fn traits(self) -> &'static Traits {
        match self {
            Engine::Native => &NATIVE,
            Engine::DeepSpeed => &DEEPSPEED,
            Engine::Ddp => &DDP,
            Engine::Fsdp2 => &FSDP2,
        }
    }
}

impl RunSpec {
    /// The engine under test.
    pub fn engine(&self) -> Engine {
        match self.settings {
            EngineSettings::Native(_) => Engine::Native,
            EngineSettings::DeepSpeed(_) => Engine::DeepSpeed,
            EngineSettings::Ddp(_) => Engine::Ddp,
            EngineSettings::Fsdp2(_) => Engine::Fsdp2,
        }
    }

    /// Whether gradients cross the ranks undivided, so that what is on the wire grows to `W` times
    /// the average.
    pub fn divides_last(&self) -> bool {
        (self.engine().traits().divides_last)(self)
    }
}

/// Seconds that a rank of a real engine may be silent: a busy machine can take a minute to import it.
const TIMEOUT_OF_REAL_ENGINES: u64 = 180;

/// Why only some engines have the shape `penalty-backward`.
const NOTHING_BESIDE_FORWARD: &str = "DDP and FSDP2 reduce in what their forward prepares, and stage \
     3's parameters are empty beside it; use --engine deepspeed with --stage 0, 1 or 2";

static NATIVE: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Followed,
    staging: Staging::Chosen,
    timeout_s: 60,
    on_gpus: true,
    follows_spec: true,
    scales_loss: true,
    has_master_weights: true,
    has_accumulator: true,
    // As DeepSpeed would, unless a setting that was asked for is about buckets.
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
    // As DeepSpeed: in the dtype of the buffer that is reduced.
    communicates_in: |_, sums, dataflow| {
        let accumulates = dataflow == Some(Dataflow::Accumulator);
        Some(if accumulates { sums.accum } else { sums.dtype })
    },
    can_accumulate: |model, accum| accum == model || accum == Dtype::Fp32,
    // With DeepSpeed's defaults (`DeepSpeedZeroConfig` in `runtime/zero/config.py`).
    settings: |request, sums, dataflow, _| {
        let asked = request.or_default(Engine::Native);
        EngineSettings::Native(NativeOptions {
            flow: match dataflow {
                Some(Dataflow::IpgBucket) => Flow::IpgBucket(Buckets {
                    overlap_comm: request.overlap_comm.unwrap_or(sums.stage == 3),
                    contiguous_gradients: request.contiguous_gradients.unwrap_or(true),
                    reduce_scatter: request.reduce_scatter.unwrap_or(true),
                }),
                _ => Flow::Accumulator,
            },
            allgather_bucket_size: asked.allgather_bucket_size(),
            parameter_groups: asked.parameter_groups(),
            inject: request.inject,
        })
    },
    divides_last: |spec| {
        let accumulates = spec.dataflow() == Some(Dataflow::Accumulator);
        accumulates || all_reduces(spec, spec.reduce_scatter() == Some(false))
    },
    leaves_no_room: |_, shape| match shape {
        Shape::TupleOutput | Shape::DictOutput => {
            Some("the native engine is handed the loss itself; choose another with --engine")
        }
        _ => None,
    },
};

static DEEPSPEED: Traits = Traits {
    deepspeed_file: DeepSpeedFile::PassedOn,
    staging: Staging::Chosen,
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: false,
    follows_spec: false,
    scales_loss: true,
    has_master_weights: true,
    has_accumulator: true,
    dataflow: |_, _| None,
    accumulates_in: |_, _| Dtype::Fp32,
    communicates_in: |_, _, _| None,
    can_accumulate: keeps_the_range,
    settings: |request, _, _, _| {
        EngineSettings::DeepSpeed(DeepSpeedOptions {
            // Filled in last: it follows from the rest.
            config: None,
            overlap_comm: request.overlap_comm,
            contiguous_gradients: request.contiguous_gradients,
            reduce_scatter: request.reduce_scatter,
            immediate_grad_update: request.immediate_grad_update,
        })
    },
    // It divides last where it all-reduces everything to everybody, unless `prescale_gradients` is
    // set: `allreduce_bucket` in `runtime/engine.py` (stage 0 and `BF16_Optimizer`) and
    // `gradient_reduction_w_predivide` in `runtime/zero/stage_1_and_2.py` (`reduce_scatter: false`).
    // Where gradients go to their owners (`average_tensor`), and in stage 3 always
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
            Some("beside the forward, stage 3's parameters are empty; use --stage 2")
        }
        Shape::PenaltyBackward if spec.stage == 3 => Some(NOTHING_BESIDE_FORWARD),
        Shape::Experts if spec.stage == 3 => {
            Some("DeepSpeed has no experts in stage 3; use --stage 0, 1 or 2")
        }
        Shape::Experts if spec.world_size == 1 => {
            Some("a single rank sends no data to another's expert; use --nproc-per-node 2 or more")
        }
        _ => None,
    },
};

static DDP: Traits = Traits {
    deepspeed_file: DeepSpeedFile::Unknown,
    staging: Staging::Always(0),
    timeout_s: TIMEOUT_OF_REAL_ENGINES,
    on_gpus: false,
    follows_spec: false,
    scales_loss: false,
    has_master_weights: false,
    has_accumulator: false,
    dataflow: |_, _| None,
    // In the parameters' own gradients.
    accumulates_in: |_, dtype| dtype,
    communicates_in: |request, sums, _| {
        Some(request.comm_hook.map_or(sums.dtype, |hook| hook.dtype(sums.dtype)))
    },
    can_accumulate: keeps_the_range,
    settings: |request, _, _, shapes| {
        let asked = request.or_default(Engine::Ddp);
        EngineSettings::Ddp(DdpOptions {
            // Filled in last where it is open: how large a bucket should be follows from the model.
            bucket_cap_mb: request.bucket_cap_mb.unwrap_or_default(),
            find_unused_parameters: request
                .find_unused_parameters
                .unwrap_or_else(|| shapes.iter().any(|shape| shape.leaves_unused())),
            static_graph: asked.static_graph(),
            gradient_as_bucket_view: asked.gradient_as_bucket_view(),
            comm_hook: asked.comm_hook(),
        })
    },
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
    on_gpus: false,
    follows_spec: false,
    scales_loss: false,
    has_master_weights: true,
    has_accumulator: true,
    dataflow: |_, _| None,
    // In the dtype that it reduces in.
    accumulates_in: |request, _| request.comm_dtype.unwrap_or(Dtype::Fp32),
    communicates_in: |_, _, _| Some(Dtype::Fp32),
    can_accumulate: |_, _| true,
    settings: |request, _, _, _| {
        let reshard_after_forward = request.or_default(Engine::Fsdp2).reshard_after_forward();
        EngineSettings::Fsdp2(Fsdp2Options { reshard_after_forward })
    },
    // By what of `W` is no power of two.
    divides_last: |_| true,
    leaves_no_room: |_, shape| match shape {
        Shape::Bypass => Some(
            "beside the forward, FSDP2's parameters are shards that no loss can use; use --engine ddp",
        ),
        Shape::PenaltyBackward => Some(NOTHING_BESIDE_FORWARD),
        _ => None,
    },
};

/// Whether a ZeRO engine all-reduces whole buckets and then divides them, where its configuration has
/// `scatters_not`.
fn all_reduces(spec: &RunSpec, scatters_not: bool) -> bool {
    spec.stage == 0 || (spec.stage < 3 && scatters_not)
}

/// Whether sums in the second dtype hold gradients of the first.
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
