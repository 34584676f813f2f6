//! Content of the events of a user's script: its loss, its clipping, its updates, its model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{Dtype, named_enum};

/// The smallest power of two that counts as a loss scale and not as a constant of the script.
pub const LEAST_LOSS_SCALE: f64 = 128.0;

/// The collectives that a rank has issued on a process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IssuedCollectives {
    /// Ranks of the group, ascending.
    pub ranks: Vec<usize>,
    /// Number of collectives that the rank has issued on the group since that began.
    pub count: u64,
}

/// The weights of the elements of a loss in what went backward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossWeighed {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number of the turn in the step, where optimizers take turns.
    #[serde(default)]
    pub turn: usize,
    /// Place of the backward in the user's own code, as `file:line`; none if there is none.
    pub at: Option<String>,
    /// Number of samples in the forward before: the length of its first input; none if that was not seen.
    pub samples: Option<usize>,
    /// Digest of the first tensor that the forward was given: equal tensors have equal digests. None if no tensor was seen.
    #[serde(default)]
    pub input: Option<f64>,
    /// Value of the loss of this microbatch; none if it is infinite or not a number.
    #[serde(default)]
    pub value: Option<f64>,
    /// Earlier microbatches of the step whose losses go backward again with this one.
    #[serde(default)]
    pub again: Vec<usize>,
    /// The gradient of the loss itself, which is 1 unless a hook or an argument of backward says otherwise.
    pub seed: f64,
    /// True if the loss was multiplied by 0, so that none of its elements has a weight.
    #[serde(default)]
    pub zeroed: bool,
    /// The terms.
    pub terms: Vec<LossTerm>,
}

/// A call that clips gradients by their norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GradientsClipped {
    /// Optimizer step.
    pub step: usize,
    /// Number of backwards of the step before the call.
    pub backwards: usize,
    /// True if an optimizer had stepped since these backwards.
    pub late: bool,
    /// Largest norm that the call allows; none for any.
    pub limit: Option<f64>,
    /// The norm that the call returned; none if it was not seen.
    pub norm: Option<f64>,
    /// Sum of the squares of this rank's part of the gradients, before the call; none for a norm of another
    /// kind.
    pub share: Option<f64>,
    /// Number of elements of this rank's part of the gradients.
    pub elements: usize,
    /// Factor by which the call has multiplied the gradients.
    pub factor: f64,
    /// Place of the call in the user's own code, as `file:line`; none if there is none.
    pub at: Option<String>,
    /// Name of the package that made the call; none for the user's own code.
    pub by: Option<String>,
    /// The loss scale that the gradients still had; none if there was none.
    pub scale: Option<f64>,
}

/// A call that clips gradients with which no optimizer stepped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClippedInVain {
    /// Optimizer step.
    pub step: usize,
    /// Fate of the gradients.
    pub how: InVain,
    /// Number of microbatches of the step before the call.
    pub backwards: usize,
    /// Factor by which the gradients were multiplied between the call and the step; none if they were not.
    pub factor: Option<f64>,
    /// Names of the parameters that the call left out.
    #[serde(default)]
    pub left: Vec<String>,
    /// Place of the call in the user's own code, as `file:line`; none if there is none.
    pub at: Option<String>,
    /// Name of the package that made the call; none for the user's own code.
    pub by: Option<String>,
}

/// A step of an optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OptimizerStepped {
    /// Optimizer step.
    pub step: usize,
    /// Number of the optimizer on this rank, in the order of their first steps.
    pub optimizer: usize,
    /// Class of the optimizer.
    pub name: String,
    /// True if no backward came since its last step.
    pub again: bool,
    /// Settings of each group of parameters, as lists of numbers by name.
    pub groups: Vec<BTreeMap<String, Vec<f64>>>,
    /// The least and the largest number of steps that its state says it has taken; none without a state.
    pub counter: Option<(f64, f64)>,
    /// True if its averages of gradients hold nothing.
    pub fresh: bool,
    /// Settings that a trainer was asked for, where it made the optimizer.
    pub asked: BTreeMap<String, Vec<f64>>,
    /// Factor of all gradients in the first step, clipping that was seen left out; none elsewhere.
    pub factor: Option<f64>,
}

/// Facts about a user's script that gradients do not show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Remarks {
    /// True if gradients had crossed the ranks before the last backward of a step; none where that was
    /// not seen.
    pub reduced_early: Option<bool>,
    /// The bound of the script's calls of `clip_grad_value_`. None if the script makes no such call.
    pub clipped_by_value: Option<f64>,
    /// Microbatches of a step that each trainer is set to, by its name.
    pub accumulation: BTreeMap<String, usize>,
    /// Names of the trainers and engines that the process has: `accelerate`, `transformers.Trainer`, `DDP`;
    /// `num_items_in_batch` where a Trainer divides by the tokens of the whole step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<String>,
    /// True if parameters, or their change, are averaged over the ranks: local SGD.
    #[serde(default)]
    pub averages: bool,
    /// Number of tensors in optimizers that are no parameters of the model, and that no backward has reached.
    #[serde(default)]
    pub strays: usize,
    /// Pairs of parameters that the model's configuration ties, and that are two.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untied: Vec<(String, String)>,
    /// Classes of the optimizers that hold trainable parameters of the model and have never stepped: `SGD`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<String>,
    /// Keys of configurations that nothing reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<UnreadKeys>,
    /// Steps of a schedule of learning rates in each step of the training, the most of several. None where no schedule of
    /// torch was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<f64>,
    /// Places of backwards in the user's own code, as `file:line`.
    pub backward_at: Vec<String>,
    /// Places of optimizer steps in the user's own code, as `file:line`.
    pub step_at: Vec<String>,
}

/// A target token that fills the ends of the rows of a microbatch, all of them at the same side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Filler {
    /// The token.
    pub token: i64,
    /// Number of targets that are this token.
    pub seen: usize,
    /// Number of those that have nothing but this token between them and the end of their row.
    pub at_ends: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of such targets in each row that has at least two, of the first rows.
    pub lengths: Vec<usize>,
    /// Number of targets beside each other that are other tokens.
    pub pairs: usize,
    /// Number of those that are the same token twice.
    pub repeats: usize,
}

/// The keys of a configuration that nothing reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadKeys {
    /// Class of the optimizer that has the configuration as a group; none for DeepSpeed's configuration.
    pub optimizer: Option<String>,
    /// The keys.
    pub keys: Vec<String>,
    /// Keys that the optimizer reads; empty for DeepSpeed's configuration.
    pub read: Vec<String>,
}

/// A comparison of half-precision parameters before and after a step of an optimizer that keeps no copy of them in full
/// precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpdatesRounded {
    /// Optimizer step.
    pub step: usize,
    /// Number of the optimizer on this rank, as in [`OptimizerStepped`].
    pub optimizer: usize,
    /// Dtypes of the parameters.
    pub dtypes: Vec<Dtype>,
    /// Number of elements that were compared, all of which had a gradient.
    pub seen: usize,
    /// Share of the elements, from 0 to 1, that are the same as before.
    pub share: f64,
}

/// A term of a loss: elements of one kind, and what each weighs in what goes backward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossTerm {
    /// Kind of the elements.
    pub of: TermOf,
    /// Name of what computes the elements, as autograd has it: `LogSoftmax`, `mse`, `Abs`.
    pub name: String,
    /// The reductions from the loss to the elements: `mean`, `sum`, `mean of sum`.
    pub kind: String,
    /// Number of elements with a weight.
    pub elements: usize,
    /// Number of the elements of a product that the script does not multiply with 0; none where these are all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonzero: Option<usize>,
    /// Shape of the elements; of the first term, where several are taken together.
    pub shape: Vec<usize>,
    /// Number of terms of this kind in the loss.
    pub terms: usize,
    /// Number of times that the loss has the same term: once, or by mistake several times.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub times: usize,
    /// The least weight of an element.
    pub least: f64,
    /// The largest weight of an element.
    pub most: f64,
    /// The sum of all weights.
    pub total: f64,
    /// True if the script itself gives elements different weights, those of classes for example.
    pub weighted: bool,
    /// Scalars that the loss was multiplied with or divided by on the way, from the root on.
    pub constants: Vec<LossConstant>,
    /// Elements beside each other that weigh the same, in order: their number, and the weight of each; empty
    /// where there are too many such runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<(usize, f64)>,
    /// The target token that fills the ends of rows; none where none does, or where it was not looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filler: Option<Filler>,
}

/// A scalar that a loss was multiplied with or divided by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossConstant {
    /// The scalar.
    pub factor: f64,
    /// Type of the scalar.
    pub kind: ConstantKind,
    /// True for a division.
    pub divides: bool,
    /// True if it is a factor of the whole loss, and not of some of its terms.
    pub whole: bool,
    /// True if the line has the number in digits.
    pub written: bool,
    /// True if the line names a number of microbatches or of ranks.
    #[serde(default)]
    pub counted: bool,
    /// Whole number by which the scalar is larger than one that such a line has in digits; none if it is not.
    #[serde(default)]
    pub times: Option<f64>,
    /// Place in the user's own code, as `file:line`; none if it was not seen.
    pub at: Option<String>,
    /// Name of the package whose code it is; none for the user's own.
    pub by: Option<String>,
}

impl LossConstant {
    /// The number by which the constant multiplies the loss.
    pub fn value(&self) -> f64 {
        if self.divides { 1.0 / self.factor } else { self.factor }
    }

    /// True for a loss scale: a power of two that multiplies the whole loss.
    pub fn is_loss_scale(&self) -> bool {
        let exponent = self.factor.log2();
        let is_power = self.factor > 0.0 && exponent.fract() == 0.0;
        is_power && self.whole && !self.divides && self.factor >= LEAST_LOSS_SCALE
    }
}

/// A block of a model that no backward has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// Dotted name of the module.
    pub module: String,
    /// Class of the module.
    pub kind: String,
    /// Indices of the parameters.
    pub params: Vec<usize>,
    /// Place at which forward reads the parameters without a gradient, as `file:line`; none if it does not.
    #[serde(default)]
    pub read: Option<String>,
}

/// A parameter with gradients that were not cleared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    /// Index of the parameter.
    pub param: usize,
    /// Weight of the old gradients.
    pub weight: f64,
    /// Size of the largest element of the old gradients with that weight.
    #[serde(default)]
    pub largest: f64,
}

named_enum! {
    /// Kind of the elements of a term of a loss.
    pub enum TermOf {
        /// Rows of log-probabilities: target tokens, or labels.
        Tokens = "tokens",
        /// Other numbers.
        Elements = "elements",
        /// Elements of parameters, as in a penalty.
        Parameters = "parameters",
        /// Elements that a function of the script's own hides.
        Hidden = "hidden",
    }
}

named_enum! {
    /// Fate of gradients that were clipped in vain.
    pub enum InVain {
        /// Further gradients were added to them before the step.
        Early = "early",
        /// The next step was that of an optimizer of other parameters.
        Elsewhere = "elsewhere",
        /// The optimizer stepped with the clipped gradients and with others that no call had clipped.
        InPart = "in-part",
        /// No parameter had a gradient.
        NoGradient = "no-gradient",
        /// The script reduced the gradients over the ranks before the step.
        BeforeReduction = "before-reduction",
        /// The gradients were multiplied with a number before the step.
        BeforeScaling = "before-scaling",
    }
}

named_enum! {
    /// Type of a scalar in a loss.
    pub enum ConstantKind {
        /// A whole number of Python.
        Int = "int",
        /// Another number of Python.
        Float = "float",
        /// A tensor, such as a count or a loss scale.
        Tensor = "tensor",
    }
}

fn once() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_once(times: &usize) -> bool {
    *times == 1
}
