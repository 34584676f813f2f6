//! The content of events about a user's script: its loss, its clipping, its updates and its model.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{Dtype, named_enum};

/// The smallest power of two that counts as a loss scale and not as a constant of the script.
pub const LEAST_LOSS_SCALE: f64 = 128.0;

/// The collectives that a rank has issued on a process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IssuedCollectives {
    /// The ranks of the group, ascending.
    pub ranks: Vec<usize>,
    /// The number of collectives that the rank has issued on the group since the group was created.
    pub count: u64,
}

/// The weight of each element of a loss in one backward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossWeighed {
    /// The number of the optimizer step, from 0.
    pub step: usize,
    /// The number of the microbatch within the step, from 0.
    pub microbatch: usize,
    /// The number of the turn within the step, from 0, if optimizers take turns.
    #[serde(default)]
    pub turn: usize,
    /// The place of the backward in the user's own code, as `file:line`; `None` if no such place exists.
    pub at: Option<String>,
    /// The number of samples in the forward before the backward, which is the length of the forward's first input;
    /// `None` if the input was not seen.
    pub samples: Option<usize>,
    /// A digest of the first tensor that the forward received: equal tensors have equal digests. `None` if no tensor
    /// was seen.
    #[serde(default)]
    pub input: Option<f64>,
    /// The value of the loss of this microbatch; `None` if the value is infinite or not a number.
    #[serde(default)]
    pub value: Option<f64>,
    /// Earlier microbatches of this step; backward runs again on their losses, together with this loss.
    #[serde(default)]
    pub again: Vec<usize>,
    /// The gradient of the loss itself, which is 1 unless a hook or an argument of backward changes it.
    pub seed: f64,
    /// True if the loss was multiplied by 0, so that none of its elements has a weight.
    #[serde(default)]
    pub zeroed: bool,
    /// The terms of the loss.
    pub terms: Vec<LossTerm>,
}

/// A call that clips gradients by their norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GradientsClipped {
    /// The number of the optimizer step, from 0.
    pub step: usize,
    /// The number of backward passes of this step that had run before the call.
    pub backwards: usize,
    /// True if an optimizer had stepped between the last backward and the call.
    pub late: bool,
    /// The largest norm that the call allows; `None` if the call allows any norm.
    pub limit: Option<f64>,
    /// The norm that the call returned; `None` if the norm was not seen.
    pub norm: Option<f64>,
    /// The sum of the squares of this rank's part of the gradients, before the call; `None` if the call uses another
    /// norm than the 2-norm.
    pub share: Option<f64>,
    /// The number of elements of this rank's part of the gradients.
    pub elements: usize,
    /// The factor by which the call has multiplied the gradients.
    pub factor: f64,
    /// The place of the call in the user's own code, as `file:line`; `None` if no such place exists.
    pub at: Option<String>,
    /// The name of the package that made the call; `None` for the user's own code.
    pub by: Option<String>,
    /// The loss scale that the gradients still contained; `None` without a loss scale.
    pub scale: Option<f64>,
}

/// A call that clips gradients without the intended effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClippedInVain {
    /// The number of the optimizer step, from 0.
    pub step: usize,
    /// The reason why the call did not have the intended effect.
    pub how: InVain,
    /// The number of microbatches of this step that had run before the call.
    pub backwards: usize,
    /// The factor by which the gradients were multiplied between the call and the step; `None` if they were not
    /// multiplied.
    pub factor: Option<f64>,
    /// The names of the parameters that the call left out.
    #[serde(default)]
    pub left: Vec<String>,
    /// The place of the call in the user's own code, as `file:line`; `None` if no such place exists.
    pub at: Option<String>,
    /// The name of the package that made the call; `None` for the user's own code.
    pub by: Option<String>,
}

/// A step of an optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OptimizerStepped {
    /// The number of the optimizer step of the training, from 0.
    pub step: usize,
    /// The number of the optimizer on this rank, in the order of the first steps of the optimizers.
    pub optimizer: usize,
    /// The class of the optimizer.
    pub name: String,
    /// True if no backward came since the last step with the same gradients.
    pub again: bool,
    /// The settings of each parameter group, as lists of numbers by name.
    pub groups: Vec<BTreeMap<String, Vec<f64>>>,
    /// The smallest and the largest number of steps in the optimizer's state; `None` without a state.
    pub counter: Option<(f64, f64)>,
    /// True if the optimizer has averages of gradients, and they are 0.
    pub fresh: bool,
    /// The settings that the user requested from a trainer that created the optimizer.
    pub asked: BTreeMap<String, Vec<f64>>,
    /// The factor of all gradients in the first step, without observed clipping; `None` in other steps, or if
    /// unknown.
    pub factor: Option<f64>,
}

/// Facts about a user's script that gradients do not show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Remarks {
    /// True if gradients were reduced over the ranks before the last backward of a step; `None` if the reductions
    /// were not seen.
    pub reduced_early: Option<bool>,
    /// The bound of the script's calls of `clip_grad_value_`; `None` if the script makes no such call.
    pub clipped_by_value: Option<f64>,
    /// The number of microbatches of a step that each trainer is set to, by the name of the trainer.
    pub accumulation: BTreeMap<String, usize>,
    /// The names of the trainers and engines of the process: `accelerate`, `transformers.Trainer`, `DDP`. The name
    /// `num_items_in_batch` stands for a Trainer that divides by the tokens of the whole step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<String>,
    /// True if parameters, or their changes, are averaged over the ranks, as in local SGD.
    #[serde(default)]
    pub averages: bool,
    /// True if the rank gets the updates of another rank by broadcast, and takes no optimizer step itself.
    #[serde(default)]
    pub receives: bool,
    /// The number of tensors in optimizers that are not parameters of the model and that no backward has reached.
    #[serde(default)]
    pub strays: usize,
    /// Pairs of parameters that the model's configuration ties, but that are separate parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untied: Vec<(String, String)>,
    /// The trainable parameters that `DistributedDataParallel` does not reduce, because they joined its module, or
    /// became trainable, after the module had been wrapped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<String>,
    /// The classes of the optimizers that hold trainable parameters of the model and have never stepped, such as
    /// `SGD`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle: Vec<String>,
    /// Configuration keys that no code reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<UnreadKeys>,
    /// The number of steps that a learning rate schedule takes in each training step, the largest of several
    /// schedules; `None` if no schedule of torch was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<f64>,
    /// The places of backwards in the user's own code, as `file:line`.
    pub backward_at: Vec<String>,
    /// The places of optimizer steps in the user's own code, as `file:line`.
    pub step_at: Vec<String>,
}

/// A target token that fills the rows of a microbatch up to one end, which is the same for all rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Filler {
    /// The token that fills the rows.
    pub token: i64,
    /// The number of targets that are the filling token.
    pub seen: usize,
    /// The number of filling tokens that lie at the end of a row, with no other token between them and the end.
    pub at_ends: usize,
    /// The number of rows of the microbatch.
    pub rows: usize,
    /// The number of filling tokens at the end of a row, for each of the first rows with at least two of them.
    pub lengths: Vec<usize>,
    /// The number of pairs of adjacent targets neither of which is the filling token.
    pub pairs: usize,
    /// The number of pairs of adjacent targets that are the same token, and not the filling token.
    pub repeats: usize,
}

/// The keys of a configuration that no code reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnreadKeys {
    /// The class of the optimizer whose parameter group has the keys; `None` for DeepSpeed's configuration.
    pub optimizer: Option<String>,
    /// The keys that no code reads.
    pub keys: Vec<String>,
    /// The keys that the optimizer reads; empty for DeepSpeed's configuration.
    pub read: Vec<String>,
}

/// A comparison of half-precision parameters before and after a step of an optimizer that keeps no full-precision
/// copy of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UpdatesRounded {
    /// The number of the optimizer step of the training, from 0.
    pub step: usize,
    /// The number of the optimizer on this rank, as in [`OptimizerStepped`].
    pub optimizer: usize,
    /// The dtypes of the compared parameters.
    pub dtypes: Vec<Dtype>,
    /// The number of compared elements, all of which had a gradient.
    pub seen: usize,
    /// The share of the elements that the step left unchanged, from 0 to 1.
    pub share: f64,
}

/// A term of a loss: elements of one kind, with the weight of each element in the backward.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossTerm {
    /// The kind of the elements.
    pub of: TermOf,
    /// The name of the operation that computes the elements, as autograd calls it: `LogSoftmax`, `mse`, `Abs`.
    pub name: String,
    /// The reductions from the loss to the elements: `mean`, `sum`, `mean of sum`.
    pub kind: String,
    /// The number of elements with a weight other than 0.
    pub elements: usize,
    /// The number of elements that the script does not multiply by 0; `None` if the script multiplies none by 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonzero: Option<usize>,
    /// The shape of the elements of the term; of the first term, if several terms of one kind are taken together.
    pub shape: Vec<usize>,
    /// The number of terms of this kind in the loss.
    pub terms: usize,
    /// The number of times that the loss includes the same term: once, or by mistake several times.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub times: usize,
    /// The smallest weight of an element.
    pub least: f64,
    /// The largest weight of an element.
    pub most: f64,
    /// The sum of all weights.
    pub total: f64,
    /// True if the script itself gives different weights to the elements, for example by class.
    pub weighted: bool,
    /// The scalars by which the loss was multiplied or divided, in order from the root of the backward.
    pub constants: Vec<LossConstant>,
    /// Runs of consecutive elements with equal weights, in order: the number of elements, and the weight of each
    /// element. Empty if there are too many runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<(usize, f64)>,
    /// The target token that fills the ends of rows; `None` if no token does, or if the rows were not examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filler: Option<Filler>,
    /// The index of the only part with a gradient in a concatenation of features on which the elements depend, such as
    /// this microbatch's features among the cached ones of other microbatches; `None` if there is no such part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_part: Option<usize>,
}

/// A scalar by which a loss was multiplied or divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossConstant {
    /// The value of the scalar.
    pub factor: f64,
    /// The type of the scalar in the script.
    pub kind: ConstantKind,
    /// True if the loss was divided by the scalar, and false if it was multiplied.
    pub divides: bool,
    /// True if the scalar is a factor of the whole loss, and not only of some of its terms.
    pub whole: bool,
    /// True if the line of code contains the scalar in digits.
    pub written: bool,
    /// True if the line of code names a number of microbatches or of ranks.
    #[serde(default)]
    pub counted: bool,
    /// The integer ratio of the scalar to a literal number on the scalar's line of code; `None` if there is no such
    /// ratio.
    #[serde(default)]
    pub times: Option<f64>,
    /// The place of the scalar in the user's own code, as `file:line`; `None` if the place was not seen.
    pub at: Option<String>,
    /// The name of the package whose code has the scalar; `None` for the user's own code.
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

/// A block of a model whose parameters no backward has reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    /// The dotted name of the block's module.
    pub module: String,
    /// The class of the block's module.
    pub kind: String,
    /// The indices of the block's parameters.
    pub params: Vec<usize>,
    /// The place at which forward reads the parameters that have no gradient, as `file:line`; `None` if there is no
    /// such place.
    #[serde(default)]
    pub read: Option<String>,
    /// True if nothing has used the block's outputs. False if something has, and in the first step with the block, in
    /// which its outputs are not watched.
    #[serde(default)]
    pub unused: bool,
}

/// A parameter with old gradients that were not cleared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    /// The index of the parameter in flat order.
    pub param: usize,
    /// The weight of the old gradients in the optimizer's input.
    pub weight: f64,
    /// The absolute value of the largest element of the old gradients with that weight.
    #[serde(default)]
    pub largest: f64,
}

named_enum! {
    /// The reason why a script clears gradients of a step on purpose.
    pub enum Aside {
        /// The parameters were changed before the next backward, as in sharpness-aware minimisation.
        ParametersChanged = "parameters-changed",
        /// The backward was made for the gradient of an input, as for an adversarial example.
        InputGradient = "input-gradient",
    }
}

named_enum! {
    /// A transformation of a gradient in which every new element depends on all old elements.
    pub enum Transform {
        /// The gradient matrix was orthogonalised, as by Muon.
        Orthogonalised = "orthogonalised",
    }
}

named_enum! {
    /// The kind of the elements of a term of a loss.
    pub enum TermOf {
        /// Rows of log-probabilities, as of target tokens or labels.
        Tokens = "tokens",
        /// Numbers of any other kind.
        Elements = "elements",
        /// Elements of parameters, as in a penalty.
        Parameters = "parameters",
        /// Elements that an autograd function of the script hides.
        Hidden = "hidden",
    }
}

named_enum! {
    /// The reason why a call that clipped gradients did not have the intended effect.
    pub enum InVain {
        /// Further gradients were added to the clipped gradients before the step.
        Early = "early",
        /// The next step was made by an optimizer of other parameters.
        Elsewhere = "elsewhere",
        /// The optimizer stepped with the clipped gradients and with other gradients that no call had clipped.
        InPart = "in-part",
        /// No parameter of the call had a gradient.
        NoGradient = "no-gradient",
        /// The script reduced the gradients over the ranks between the call and the step.
        BeforeReduction = "before-reduction",
        /// The gradients were multiplied by a number between the call and the step.
        BeforeScaling = "before-scaling",
    }
}

named_enum! {
    /// The type of a scalar in a loss.
    pub enum ConstantKind {
        /// A Python integer.
        Int = "int",
        /// A Python number that is not an integer.
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
