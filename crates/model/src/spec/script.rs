//! Specification of a user's own training script, as it turned out to be.
//!
//! Nobody asks for it: `zprobe exec` watches the script, and what the ranks found becomes the
//! specification afterwards.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Backend, Device, Dtype, EngineSettings, LossScale, Model, Observation, Offload, Optimizer,
    Recording, RunSpec, named_enum,
};

/// Steps of a run whose gradients are codes. They come after the first step, whose gradients are
/// address stamps.
const CODED_STEPS: usize = 2;

/// Steps after which a script on codes is ended: that of the address stamps, and those of the codes.
pub const CODED_SCRIPT: usize = 1 + CODED_STEPS;

/// Unit of the codes that take the place of a script's gradients: small enough that no update moves a
/// parameter far, and a power of two, so that nothing is rounded.
pub const UNIT: f64 = 1.0 / 1024.0;

/// Most gradients of an observed script that are told apart; of more, only those of two steps are.
const MOST_OBSERVED: usize = 256;

named_enum! {
    /// The law that the weights of target tokens are to follow.
    pub enum Weighting {
        /// No law is demanded.
        Any = "any",
        /// Every token of a step weighs the same.
        Token = "token",
        /// Every sample of a step weighs the same, and so do the tokens in it.
        Sample = "sample",
        /// Every microbatch of a step weighs the same.
        Microbatch = "microbatch",
    }
}

named_enum! {
    /// The sum that the weights of all elements of a loss are to have in the update.
    pub enum Scale {
        /// That of a mean over microbatches and ranks.
        Mean = "mean",
        /// That of a mean, or of a sum over microbatches or ranks.
        Sum = "sum",
        /// Any sum.
        Any = "any",
    }
}

/// A mean, since engines average over the ranks, and trainers over the microbatches.
impl Default for Scale {
    fn default() -> Self {
        Self::Mean
    }
}

/// No law, since it is the user's to say which is right.
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
    /// Number of steps whose real gradients were to be sampled; none where codes took their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<usize>,
    /// The law that the weights of target tokens are to follow.
    #[serde(default)]
    pub weighting: Weighting,
    /// The sum that the weights of the loss are to have.
    #[serde(default)]
    pub scale: Scale,
    /// Number of codes that were reserved for the microbatches of a step, where they were not known
    /// beforehand: of a script with a single step; none where every code was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<usize>,
}

impl ScriptOptions {
    /// Arguments of `zprobe exec` that watch the script once more.
    pub(super) fn arguments(&self, seed: u64) -> Vec<String> {
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
        arguments.push("--".to_owned());
        arguments.extend(self.command.iter().cloned());
        arguments
    }
}

/// Facts about the training of a script that its ranks agreed on.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Number of ranks.
    pub world_size: usize,
    /// Number of optimizer steps that every rank took; 0 where the script broke in the first.
    pub steps: usize,
    /// Number of optimizer steps that some rank began, as far as the report tells of them.
    pub begun: usize,
    /// The largest number of backwards of any rank in the first step: the microbatches.
    pub microbatches: usize,
    /// Number of codes that were reserved for the microbatches of the first step.
    pub reserved: usize,
    /// Dtype of the gradients that autograd delivers; the narrowest, if there are several.
    pub dtype: Dtype,
    /// Device of the gradients.
    pub device: Device,
    /// Backend of the default process group.
    pub backend: Backend,
    /// Seed of the codes.
    pub seed: u64,
    /// Seconds of silence after which ranks count as hung.
    pub timeout_s: u64,
}

impl Found {
    /// The facts of a script that has not begun: there are no ranks yet.
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
    /// False for a script's specification at the time of its start, when it has no ranks yet.
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
            // None of them came to its end where the script broke in the first.
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
            // Where a rank ended in a step, that step is told of too.
            steps: found.steps.max(found.begun).max(1),
            code_steps: Some(code_steps),
            dtype: found.dtype,
            grad_accum_dtype: found.dtype,
            comm_dtype: None,
            reduce_bucket_size: 1,
            offload: Offload::None,
            gradient_clipping: 0.0,
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

    /// The user's script; none for runs of an engine on zprobe's own model.
    pub fn script(&self) -> Option<&ScriptOptions> {
        if let EngineSettings::Script(options) = &self.settings { Some(options) } else { None }
    }
}
