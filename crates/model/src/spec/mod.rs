//! The specification of a run: flags, a DeepSpeed JSON file or a probe become one validated [`RunSpec`], and
//! [`plan`] says where every gradient of the run should go.
//!
//! A [`RunSpec`] is complete: every default is filled in and every contradiction is refused, so that no later part
//! (launcher, rank, diagnosis) interprets flags again. The specification is sent to the ranks as JSON and is part
//! of the first record of the trace.

mod checks;
pub mod code;
mod command;
mod ddp;
pub mod deepspeed;
mod device;
mod engine;
mod exactness;
pub mod fault;
mod fsdp1;
mod fsdp2;
mod invalid;
mod models;
mod options;
mod pipeline;
pub mod plan;
mod point;
mod recording;
mod request;
mod scale;
mod script;
pub mod settings;
mod shape;
mod usage;
mod validate;
pub mod workload;

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use command::Command;
pub use ddp::{CommHook, Compile, DdpOptions, DelayedParameters, OverlappedOptimizer};
pub use device::{Backend, BackendChoice, Device, DeviceChoice, Gpus, Missing, NoCuda};
pub use engine::{DeepSpeedFile, Engine, EngineSettings, Staging, Traits};
pub use fault::Fault;
pub use fsdp1::{Fsdp1Options, ShardingStrategy};
pub use fsdp2::Fsdp2Options;
pub use invalid::{Invalid, Refusal};
pub use options::{
    Buckets, DeepSpeedOptions, LossScale, NativeOptions, NormType, Observation, Offload,
    SequenceGroups,
};
pub use options::{any_engine, any_engine_schema};
pub use pipeline::{DataParallel, PIPELINE_SHAPES, PipelineOptions, Schedule};
pub use plan::Plan;
pub use point::Point;
pub use recording::MOST_STEPS;
pub use recording::{LARGEST_WHOLE, Recording};
pub use request::DEFAULT_WORLD_SIZE;
pub use scale::ScaleLaw;
pub use script::{CODED_SCRIPT, Found, SCRIPT_TIMEOUT_S, Scale, ScriptOptions, UNIT, Weighting};
pub use settings::{MOST_RANKS, SpecRequest};
pub use shape::Shape;
pub use usage::Usage;
pub use workload::{Loss, Output, Workload};

/// The complete specification of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The engine under test, with the settings that only this engine has.
    #[serde(flatten)]
    pub settings: EngineSettings,
    /// The ZeRO stage: 0 replicates everything, 1 partitions the optimizer states, 2 also the gradients, 3 also the
    /// parameters.
    pub stage: u8,
    /// The number of ranks, `W`.
    pub world_size: usize,
    /// The device that the ranks compute on.
    #[serde(default)]
    pub device: Device,
    /// The backend that the ranks communicate over.
    #[serde(default)]
    pub backend: Backend,
    /// The number of microbatches per optimizer step, `GA`.
    pub gradient_accumulation_steps: usize,
    /// The number of optimizer steps. With two or more, a gradient left over from the previous step is visible.
    pub steps: usize,
    /// The number of steps after which the codes repeat; `None` if every step has codes of its own.
    #[serde(default)]
    pub code_steps: Option<usize>,
    /// The step before which the ranks save a checkpoint, and go on with a new engine that loads the checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_before: Option<usize>,
    /// The dtype of the model's parameters and of each microbatch's gradient.
    pub dtype: Dtype,
    /// The dtype in which the gradients of the microbatches are accumulated.
    pub grad_accum_dtype: Dtype,
    /// The dtype in which gradients are communicated; `None` if the engine under test chooses the dtype.
    pub comm_dtype: Option<Dtype>,
    /// The capacity of an IPG bucket, in elements (DeepSpeed's `reduce_bucket_size`).
    pub reduce_bucket_size: usize,
    /// The place of the optimizer states: with the model, or in the host's memory.
    pub offload: Offload,
    /// The global norm above which the gradient is scaled down; 0 turns clipping off.
    pub gradient_clipping: f64,
    /// The norm by which torch clips the gradient.
    #[serde(default, skip_serializing_if = "NormType::is_usual")]
    pub norm_type: NormType,
    /// The scale of the loss; without effect on other models than fp16, if the engine itself scales the loss.
    pub loss_scale: LossScale,
    /// The observed part of the engine: every visible point, or only the parameters after each step.
    pub observe: Observation,
    /// True if memory that torch allocates is filled with NaN until something writes to it.
    #[serde(default)]
    pub poison_memory: bool,
    /// The synthetic model that the ranks train.
    pub model: Model,
    /// The minimum number of elements of the model; `None` for the smallest possible model.
    pub parameters: Option<usize>,
    /// The shapes of the run: unusual features of the model and of its use.
    pub shapes: Vec<Shape>,
    /// The number of samples per microbatch and rank (`train_micro_batch_size_per_gpu`).
    pub micro_batch_size: usize,
    /// The inner optimizer, which updates the fp32 master weights.
    pub optimizer: Optimizer,
    /// The number of parameter groups of the optimizer: 1, or 2 to separate parameters with weight decay from those
    /// without. `None` for a training script, and in traces of engines that always had one group.
    #[serde(default)]
    pub parameter_groups: Option<usize>,
    /// The seed of all synthetic data.
    pub seed: u64,
    /// The number of seconds without an event after which a rank counts as hung.
    pub timeout_s: u64,
    /// The parts of the run that the trace records.
    #[serde(default)]
    pub recording: Recording,
}

impl RunSpec {
    /// True if the run has this shape.
    pub fn has_shape(&self, shape: Shape) -> bool {
        self.shapes.contains(&shape)
    }

    /// True if the run scales its loss, and skips steps that overflow.
    pub fn scales_loss(&self) -> bool {
        if self.engine().traits().scales_loss {
            self.dtype == Dtype::Fp16
        } else {
            matches!(self.loss_scale, LossScale::Dynamic { .. })
        }
    }

    /// True if a step with a gradient that is not finite has to be skipped: with a loss scale, and in DeepSpeed's stages
    /// 1 and 2 if the configuration asks for the check in bf16, which `BF16_Optimizer` does not have.
    pub fn skips_overflows(&self) -> bool {
        let checks_bf16 = || {
            let config = self.deepspeed_config()?;
            let asked = config.pointer("/bf16/check_grad_overflow")?.as_bool()?;
            Some(
                asked
                    && self.dtype == Dtype::Bf16
                    && self.dataflow_of_deepspeed() == Dataflow::IpgBucket,
            )
        };
        self.scales_loss() || matches!(self.stage, 1 | 2) && checks_bf16() == Some(true)
    }

    /// The learning rate of SGD in a step, whose update is the gradient times this rate; `None` for other optimizers.
    pub fn readable_lr(&self, step: usize) -> Option<f64> {
        let warms_up = step == 0 && self.has_shape(Shape::WarmUp);
        self.optimizer.readable_lr().map(|lr| if warms_up { lr / 2.0 } else { lr })
    }

    /// The number of units of the coded model's starting values in the highest learning rate. The unit is the lowest
    /// learning rate.
    pub fn units_of_lr(&self) -> usize {
        if self.has_shape(Shape::WarmUp) { 2 } else { 1 }
    }

    /// The dataflow that DeepSpeed chooses for the settings of the run.
    fn dataflow_of_deepspeed(&self) -> Dataflow {
        Dataflow::of_deepspeed(self.stage, self.dtype, self.grad_accum_dtype, Some(self.offload))
    }

    /// The point that decides which gradient a step used: the input of the inner optimizer, or the change of the
    /// parameters if only the outcome was observed.
    pub fn last_word(&self) -> Point {
        match self.observe {
            Observation::Full => Point::OptimizerInput,
            Observation::Outcome => Point::Parameters,
        }
    }

    /// The dtype in which gradients are communicated. If the engine chooses the dtype, the narrowest dtype that the
    /// engine could choose.
    pub fn narrowest_comm_dtype(&self) -> Dtype {
        self.comm_dtype.unwrap_or(self.dtype)
    }

    /// The number of gradients in one optimizer step, `W·GA`.
    pub fn contributions_per_step(&self) -> usize {
        self.world_size * self.gradient_accumulation_steps
    }

    /// The number of steps whose gradients can be told apart: all steps, or the last few if the codes repeat.
    pub fn code_steps(&self) -> usize {
        self.code_steps.map_or(self.steps, |steps| steps.min(self.steps))
    }

    /// The number of gradients that can be told apart: `K = steps·W·GA`, for the steps of [`RunSpec::code_steps`].
    pub fn contributions(&self) -> usize {
        self.code_steps() * self.contributions_per_step()
    }

    /// The number of gradients in the whole run.
    pub fn all_contributions(&self) -> usize {
        self.steps * self.contributions_per_step()
    }

    /// The steps whose gradients can be told apart in a buffer of `step`: `step` itself and the steps just before.
    pub fn steps_seen(&self, step: usize) -> Range<usize> {
        (step + 1).saturating_sub(self.code_steps())..step + 1
    }

    /// The samples of a microbatch on a rank, numbered through the whole run. Each global batch is divided among
    /// its microbatches, and each microbatch among the ranks, so a step has the same samples however its batch is
    /// split.
    pub fn samples(&self, step: usize, rank: usize, microbatch: usize) -> Range<usize> {
        let place = (step * self.gradient_accumulation_steps + microbatch) * self.world_size + rank;
        place * self.micro_batch_size..(place + 1) * self.micro_batch_size
    }

    /// The seed of the data of a sample.
    pub fn sample_seed(&self, sample: usize) -> u64 {
        self.seed.wrapping_mul(1_000_003).wrapping_add(sample as u64 + 1)
    }

    /// The indices of a step's gradients among the `K` gradients that can be told apart.
    pub fn columns(&self, step: usize) -> Range<usize> {
        let first = self.column(step, 0, 0);
        first..first + self.contributions_per_step()
    }

    /// The index of a gradient among the `K` gradients that can be told apart, in the order step, rank, microbatch.
    /// Steps that are [`RunSpec::code_steps`] apart share their indices.
    pub fn column(&self, step: usize, rank: usize, microbatch: usize) -> usize {
        let step = step % self.code_steps();
        (step * self.world_size + rank) * self.gradient_accumulation_steps + microbatch
    }
}

/// Declares an enum without fields and with one lowercase name per variant. The command line, JSON and messages all
/// use this name, so that they cannot drift apart.
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema, clap::ValueEnum)]
        $vis enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] #[value(name = $text)] $variant,)*
        }
        impl $name {
            /// All variants, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// The name of the variant on the command line and in JSON.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub use crate::named_enum;

named_enum! {
    /// The element type of a buffer.
    pub enum Dtype {
        /// bfloat16: 8 significant bits.
        #[value(alias = "bfloat16")]
        Bf16 = "bf16",
        /// IEEE half: 11 significant bits.
        #[value(aliases = ["float16", "half"])]
        Fp16 = "fp16",
        /// IEEE single: 24 significant bits.
        #[value(aliases = ["float32", "float"])]
        Fp32 = "fp32",
    }
}

impl Dtype {
    /// The size of an element, in bytes.
    pub const fn size(self) -> usize {
        match self {
            Dtype::Bf16 | Dtype::Fp16 => 2,
            Dtype::Fp32 => 4,
        }
    }

    /// The unit roundoff `u`: half the distance from 1 to the next larger number of the dtype.
    pub fn unit_roundoff(self) -> f64 {
        match self {
            Dtype::Bf16 => 2f64.powi(-8),
            Dtype::Fp16 => 2f64.powi(-11),
            Dtype::Fp32 => 2f64.powi(-24),
        }
    }

    /// The largest finite number of the dtype.
    pub fn largest(self) -> f64 {
        match self {
            Dtype::Bf16 => half::bf16::MAX.to_f64(),
            Dtype::Fp16 => half::f16::MAX.to_f64(),
            Dtype::Fp32 => f64::from(f32::MAX),
        }
    }

    /// True if fewer integers are exact in this dtype than in `other`.
    pub const fn is_narrower_than(self, other: Dtype) -> bool {
        self.exact_integers() < other.exact_integers()
    }

    /// The largest `n` such that every integer in `-n..=n` is exact in this dtype.
    pub const fn exact_integers(self) -> usize {
        match self {
            Dtype::Bf16 => 1 << 8,
            Dtype::Fp16 => 1 << 11,
            Dtype::Fp32 => 1 << 24,
        }
    }
}

named_enum! {
    /// The place where gradients wait between backward and reduction.
    ///
    /// DeepSpeed chooses between the two places in `DeepSpeedEngine._configure_zero_optimizer`
    /// (`runtime/engine.py`): stage 1 with a bf16 model, fp32 accumulation and no offload uses `BF16_Optimizer`,
    /// every other stage 1 or 2 uses `DeepSpeedZeroOptimizer`.
    pub enum Dataflow {
        /// A separate flat accumulator, filled after each backward and reduced as a whole at the
        /// gradient accumulation boundary: DeepSpeed's `BF16_Optimizer`.
        Accumulator = "accumulator",
        /// Hooks fill IPG buckets that are flushed when full and at the boundary: DeepSpeed's
        /// `DeepSpeedZeroOptimizer`.
        IpgBucket = "ipg-bucket",
    }
}

named_enum! {
    /// The synthetic model that the ranks train.
    pub enum Model {
        /// A model whose gradients are rows of a Walsh–Hadamard matrix, so that contribution weights are read exactly.
        Coded = "coded",
        /// Linear–GELU–Linear, 64 wide: contribution weights are found by least squares.
        Mlp = "mlp",
    }
}

/// The inner optimizer, which updates each rank's partition of the fp32 master weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Optimizer {
    /// Plain SGD. If the learning rate is a power of two, the update *is* the gradient, scaled exactly, so the
    /// parameters suffice to read contribution weights.
    Sgd {
        /// The learning rate.
        lr: f64,
    },
    /// AdamW: Adam with decoupled weight decay.
    Adamw {
        /// The learning rate.
        lr: f64,
        /// The decay rates of the first and the second moment.
        betas: [f64; 2],
        /// The epsilon that is added to the square root of the second moment.
        eps: f64,
        /// The factor of the decoupled weight decay.
        weight_decay: f64,
    },
    /// DeepSpeed's Muon for matrices, and AdamW for all other parameters, with the settings of the DeepSpeed
    /// configuration.
    Muon,
}

impl Optimizer {
    /// SGD with the learning rate 2⁻¹⁰.
    pub const EXACT_SGD: Optimizer = Optimizer::Sgd { lr: 1.0 / 1024.0 };

    /// AdamW with torch's defaults.
    pub const ADAMW: Optimizer =
        Optimizer::Adamw { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.01 };

    /// The learning rate by which an update can be converted back to its gradient exactly: that of SGD if it is a
    /// power of two; `None` otherwise.
    pub fn readable_lr(&self) -> Option<f64> {
        match *self {
            Optimizer::Sgd { lr } if (1e-30..1e30).contains(&lr) => {
                let mantissa = lr.to_bits() & ((1 << (f64::MANTISSA_DIGITS - 1)) - 1);
                (mantissa == 0).then_some(lr)
            }
            _ => None,
        }
    }

    /// The name of the optimizer's algorithm.
    pub const fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd { .. } => "SGD",
            Optimizer::Adamw { .. } => "AdamW",
            Optimizer::Muon => "Muon",
        }
    }
}
