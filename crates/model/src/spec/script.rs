//! The specification of a user's own training script, made from what its ranks found.
//!
//! No request asks for this specification: `zprobe exec` watches the script, and the facts that the ranks found
//! become the specification afterwards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Backend, Device, Dtype, EngineSettings, LossScale, Model, NormType, Observation, Offload,
    Optimizer, Recording, RunSpec, named_enum,
};

/// The number of steps whose gradients are codes. They come after the first step, whose gradients are address stamps.
const CODED_STEPS: usize = 2;

/// The number of steps after which a script on codes is ended: the step of the address stamps, and the coded steps.
pub const CODED_SCRIPT: usize = 1 + CODED_STEPS;

/// The default of `zprobe exec --timeout` in seconds. NCCL times out after 600 seconds.
pub const SCRIPT_TIMEOUT_S: u64 = 540;

/// The unit of the codes that replace a script's gradients: small enough that no update moves a parameter far, and
/// a power of two, so that nothing is rounded.
pub const UNIT: f64 = 1.0 / 1024.0;

/// The maximum number of gradients of an observed script that are told apart; with more gradients, only those of
/// two steps are told apart.
const MOST_OBSERVED: usize = 256;

named_enum! {
    /// The law that the weights of target tokens must follow.
    pub enum Weighting {
        /// No law is required.
        Any = "any",
        /// Every token of a step has the same weight.
        Token = "token",
        /// Every sample of a step has the same weight, and so have the tokens in a sample.
        Sample = "sample",
        /// Every microbatch of a step has the same weight.
        Microbatch = "microbatch",
    }
}

named_enum! {
    /// The sum that the weights of all elements of a loss must have in the update.
    pub enum Scale {
        /// The sum that a mean over microbatches and ranks gives.
        Mean = "mean",
        /// The sum from which a mean is computed, or a sum over microbatches or ranks.
        Sum = "sum",
        /// Any sum is accepted.
        Any = "any",
    }
}

/// A mean, because engines average over the ranks, and trainers over the microbatches.
impl Default for Scale {
    fn default() -> Self {
        Self::Mean
    }
}

/// No law, because the user decides which law is right.
impl Default for Weighting {
    fn default() -> Self {
        Self::Any
    }
}

/// A user's own training script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScriptOptions {
    /// The user's command, one word each.
    pub command: Vec<String>,
    /// True if no optimizer stepped.
    pub dry: bool,
    /// The number of steps whose real gradients were to be sampled; `None` if codes replaced the gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<usize>,
    /// The law that the weights of target tokens must follow.
    #[serde(default)]
    pub weighting: Weighting,
    /// The sum that the weights of the loss must have.
    #[serde(default)]
    pub scale: Scale,
    /// The number of codes that were reserved for the microbatches of a step, if the number of microbatches was not
    /// known beforehand: for a script with a single step. `None` if every code was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<usize>,
}

impl ScriptOptions {
    /// The number of steps that zprobe watches if the script takes that many: the first step, and then the steps whose
    /// gradients are codes or are sampled.
    pub fn watched_steps(&self) -> usize {
        self.observe.map_or(CODED_SCRIPT, |steps| steps + 1)
    }

    /// The arguments of `zprobe exec` that watch the script again.
    pub(super) fn arguments(&self, seed: u64, timeout_s: u64) -> Vec<String> {
        let mut arguments = Vec::new();
        if self.dry {
            arguments.push("--dry".to_owned());
        }
        arguments.extend(self.observe.map(|steps| format!("--observe={steps}")));
        if self.weighting != Weighting::Any {
            arguments.extend(["--weighting".to_owned(), self.weighting.to_string()]);
        }
        if self.scale != Scale::Mean {
            arguments.extend(["--scale".to_owned(), self.scale.to_string()]);
        }
        if seed != 0 {
            arguments.extend(["--seed".to_owned(), seed.to_string()]);
        }
        if timeout_s != SCRIPT_TIMEOUT_S {
            arguments.extend(["--timeout".to_owned(), timeout_s.to_string()]);
        }
        arguments.push("--".to_owned());
        arguments.extend(self.command.iter().cloned());
        arguments
    }
}

/// The facts about a script's training that its ranks agreed on.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The number of ranks.
    pub world_size: usize,
    /// The number of optimizer steps that every rank took; 0 if the script failed in the first step.
    pub steps: usize,
    /// The number of optimizer steps that at least one rank began, as far as the report covers them.
    pub begun: usize,
    /// The number of microbatches: the largest number of backwards of any rank in the first step.
    pub microbatches: usize,
    /// The number of gradient codes (distinct test values) reserved for the microbatches of the first step.
    pub reserved: usize,
    /// The dtype of the gradients that autograd delivers; the narrowest dtype, if there are several.
    pub dtype: Dtype,
    /// The device of the gradients.
    pub device: Device,
    /// The backend of the default process group.
    pub backend: Backend,
    /// The seed of the codes.
    pub seed: u64,
    /// The number of seconds of silence after which ranks count as hung.
    pub timeout_s: u64,
}

impl Found {
    /// The facts about a script that has not begun and has no ranks yet.
    pub fn nothing(seed: u64, timeout_s: u64) -> Self {
        Self {
            world_size: 0,
            steps: 0,
            begun: 0,
            microbatches: 1,
            reserved: 1,
            dtype: Dtype::Fp32,
            device: Device::Cpu,
            backend: Backend::Gloo,
            seed,
            timeout_s,
        }
    }
}

impl RunSpec {
    /// False for the specification of a script that has just started and has no ranks yet.
    pub fn is_settled(&self) -> bool {
        self.world_size > 0 || self.script().is_none()
    }

    /// The specification of a script's training.
    pub fn of_script(script: ScriptOptions, found: &Found) -> Self {
        let only_first = found.steps <= 1 && script.observe.is_none();
        let script = ScriptOptions { reserved: only_first.then_some(found.reserved), ..script };
        let model = if script.observe.is_some() { Model::Mlp } else { Model::Coded };
        let steps_of_all = found.world_size * found.microbatches * found.steps;
        let code_steps = if script.observe.is_some() && steps_of_all <= MOST_OBSERVED {
            // The number of steps is 0 if the script failed in the first step.
            found.steps.max(1)
        } else {
            CODED_STEPS
        };
        let recorded = if only_first { 0..1 } else { 1..found.steps.max(1) };
        Self {
            settings: EngineSettings::Script(script),
            stage: 0,
            world_size: found.world_size,
            device: found.device,
            backend: found.backend,
            gradient_accumulation_steps: found.microbatches,
            // If a rank ended in a step, the report covers that step too.
            steps: found.steps.max(found.begun).max(1),
            code_steps: Some(code_steps),
            resume_before: None,
            dtype: found.dtype,
            grad_accum_dtype: found.dtype,
            comm_dtype: None,
            reduce_bucket_size: 1,
            offload: Offload::None,
            gradient_clipping: 0.0,
            norm_type: NormType::Two,
            loss_scale: LossScale::Static { scale: 1.0 },
            observe: Observation::Full,
            poison_memory: false,
            parameter_groups: None,
            model,
            parameters: None,
            shapes: Vec::new(),
            micro_batch_size: 1,
            optimizer: Optimizer::ADAMW,
            seed: found.seed,
            timeout_s: found.timeout_s,
            recording: Recording {
                steps: Some(recorded.collect()),
                sampled: true,
                ..Recording::default()
            },
        }
    }

    /// The user's script; `None` for runs of an engine on zprobe's own model.
    pub fn script(&self) -> Option<&ScriptOptions> {
        if let EngineSettings::Script(options) = &self.settings { Some(options) } else { None }
    }
}
