//! Shapes: unusual features of the model, or of its use, in which real bugs hide.

use super::{Engine, named_enum};

named_enum! {
    /// An unusual feature of the model or of its use. Shapes can be combined.
    ///
    /// Whatever its shapes, the coded model has a parameter that is larger than the default bucket, and parameters
    /// that cross partition boundaries.
    pub enum Shape {
        /// A parameter is not used in the first microbatch of a step.
        UnusedFirst = "unused-first",
        /// A parameter is not used in the last microbatch of a step.
        UnusedLast = "unused-last",
        /// A parameter is never used.
        UnusedAlways = "unused-always",
        /// A parameter is used in every other step, beginning with the first.
        UnusedAlternating = "unused-alternating",
        /// A parameter is used only on the ranks with an even number.
        UnusedOnOddRanks = "unused-on-odd-ranks",
        /// Another parameter is used only on the ranks with an odd number.
        UnusedOnEvenRanks = "unused-on-even-ranks",
        /// A block does not run in the first microbatch of a step.
        SkippedBlock = "skipped-block",
        /// A block runs in the last microbatch of a step, but is not part of that microbatch's loss.
        DetachedBlock = "detached-block",
        /// The ranks with an odd number use the parameters in reverse order.
        ReversedOnOddRanks = "reversed-on-odd-ranks",
        /// A parameter is used twice in each microbatch.
        Tied = "tied",
        /// A parameter is frozen: it requires no gradient.
        Frozen = "frozen",
        /// A parameter is frozen in every other step, beginning with the first.
        FrozenAlternating = "frozen-alternating",
        /// A term of the loss uses a parameter outside the engine's forward.
        Bypass = "bypass",
        /// The forward returns a tuple of loss and logits.
        TupleOutput = "tuple-output",
        /// The forward returns a dict of loss and logits.
        DictOutput = "dict-output",
        /// One element of one gradient is infinite, on one rank, in the first microbatch.
        InfinityOnOneRank = "infinity-on-one-rank",
        /// The loss of each microbatch goes backward in two parts.
        SeveralBackwards = "several-backwards",
        /// After the loss, a penalty on a parameter goes backward that was computed outside the engine's forward.
        PenaltyBackward = "penalty-backward",
        /// The last microbatch's loss reaches only a tensor that the engine does not manage.
        Unmanaged = "unmanaged",
        /// The flag that `no_sync` switches is set between forward and backward: a user's mistake with DDP, whose
        /// forward has already read the flag.
        LateNoSync = "late-no-sync",
        /// Each rank holds an expert of its own, and all ranks send the same data to all experts, so that the
        /// experts stay alike: expert parallelism over all ranks.
        Experts = "experts",
        /// Two parameters have one element each.
        Scalars = "scalars",
        /// The model has at least three blocks, which are alike.
        ThreeBlocks = "three-blocks",
        /// Two neighbouring parameters have the same shape.
        Twins = "twins",
        /// The ranks start with different parameters, and the engine makes them equal.
        DifferentStart = "different-start",
        /// The loss goes backward by itself (`loss.backward()`), and not through DeepSpeed's engine.
        LossBackward = "loss-backward",
        /// All gradients of a step are reduced at its end, in DeepSpeed's context `coalesce_grad_reduction`.
        CoalescedReduction = "coalesced-reduction",
        /// The first step has half of the learning rate; torch's scheduler `ConstantLR` sets the rate.
        WarmUp = "warm-up",
    }
}

/// The facts about a shape, except which microbatches use its parameter: see [`super::Usage`].
struct ShapeFacts {
    /// The description of the shape, in words.
    describe: &'static str,
    /// The parameter of the coded model that the shape is about, if the shape is about a single one.
    param: Option<&'static str>,
    /// The block of the coded model that the shape is about, if the shape is about a block.
    block: Option<&'static str>,
    /// True if at least one microbatch does not reach every trainable parameter.
    leaves_unused: bool,
    /// The only engine that has the shape, and the advice for other engines; `None` if any engine may have the shape.
    only_on: Option<(Engine, &'static str)>,
}

impl ShapeFacts {
    /// The facts about a shape that is about this parameter, or about no single parameter.
    const fn new(describe: &'static str, param: Option<&'static str>) -> Self {
        Self { describe, param, block: None, leaves_unused: false, only_on: None }
    }

    /// The facts about a shape in which some microbatches do not use this parameter.
    const fn unused(describe: &'static str, param: &'static str) -> Self {
        Self { leaves_unused: true, ..Self::new(describe, Some(param)) }
    }

    /// The facts about a shape in which some microbatches do not use a block.
    const fn unused_block(describe: &'static str) -> Self {
        let facts = Self::new(describe, None);
        Self { leaves_unused: true, block: Some("layers.0"), ..facts }
    }

    /// The facts about a shape that only this engine has.
    const fn only_on(self, engine: Engine, advice: &'static str) -> Self {
        Self { only_on: Some((engine, advice)), ..self }
    }
}

impl Shape {
    const fn facts(self) -> ShapeFacts {
        match self {
            Shape::UnusedFirst => ShapeFacts::unused(
                "a parameter is unused in the first microbatch of each step",
                "layers.0.attn.weight",
            ),
            Shape::UnusedLast => ShapeFacts::unused(
                "a parameter is unused in the last microbatch of each step",
                "layers.0.mlp.weight",
            ),
            Shape::UnusedAlways => {
                ShapeFacts::unused("a parameter is never used", "layers.0.norm.weight")
            }
            Shape::UnusedAlternating => ShapeFacts::unused(
                "a parameter is used in one step and unused in the next",
                "embed.weight",
            ),
            Shape::UnusedOnOddRanks => ShapeFacts {
                leaves_unused: true,
                ..ShapeFacts::new(
                    "a parameter is used only on the ranks with an even number",
                    Some("layers.0.mlp.bias"),
                )
            },
            Shape::UnusedOnEvenRanks => ShapeFacts {
                leaves_unused: true,
                ..ShapeFacts::new(
                    "a parameter is used only on the ranks with an odd number",
                    Some("head.bias"),
                )
            },
            Shape::SkippedBlock => ShapeFacts::unused_block(
                "a block does not run in the first microbatch of each step",
            ),
            Shape::DetachedBlock => ShapeFacts::unused_block(
                "a block runs in the last microbatch of each step, but is not part of its loss",
            ),
            Shape::ReversedOnOddRanks => ShapeFacts::new(
                "the ranks with an odd number use the parameters in reverse order",
                None,
            ),
            Shape::Tied => ShapeFacts::new(
                "a parameter is used twice in each microbatch",
                Some("position.weight"),
            ),
            Shape::Frozen => {
                ShapeFacts::new("a parameter requires no gradient", Some("frozen.weight"))
            }
            Shape::FrozenAlternating => ShapeFacts::unused(
                "a parameter requires no gradient in one step, and requires one in the next",
                "layers.0.mlp.weight",
            ),
            Shape::Bypass => ShapeFacts::new(
                "a term of the loss uses a parameter outside of the engine's forward",
                Some("layers.0.attn.weight"),
            ),
            Shape::TupleOutput => {
                ShapeFacts::new("forward returns a tuple of loss and logits", None)
            }
            Shape::DictOutput => ShapeFacts::new("forward returns a dict of loss and logits", None),
            Shape::InfinityOnOneRank => ShapeFacts::new(
                "one element of one rank's gradient is infinite",
                Some("layers.0.norm.weight"),
            ),
            Shape::SeveralBackwards => ShapeFacts::new(
                "each microbatch's loss has two backward calls, one for each part",
                None,
            ),
            Shape::PenaltyBackward => ShapeFacts::new(
                "a penalty from outside of the engine's forward has its own backward call",
                Some("layers.0.mlp.weight"),
            ),
            Shape::Unmanaged => ShapeFacts::new(
                "the last microbatch reaches only a tensor outside of the engine",
                None,
            ),
            Shape::LateNoSync => ShapeFacts::new(
                "the user's script sets DDP's no_sync flag too late, after forward",
                None,
            )
            .only_on(Engine::Ddp, "only DDP has no_sync; use --engine ddp"),
            Shape::Experts => ShapeFacts::new(
                "each rank holds an expert, to which all ranks send the same data",
                Some("expert.weight"),
            )
            .only_on(
                Engine::DeepSpeed,
                "only DeepSpeed supports parameters that are experts; use --engine deepspeed",
            ),
            Shape::Scalars => {
                ShapeFacts::new("two parameters have one element each", Some("gain.weight"))
            }
            Shape::ThreeBlocks => {
                ShapeFacts::new("the model has at least three blocks, which are alike", None)
            }
            Shape::Twins => ShapeFacts::new(
                "two neighbouring parameters have the same shape",
                Some("query.weight"),
            ),
            Shape::DifferentStart => {
                ShapeFacts::new("the ranks start with different parameters", None)
            }
            Shape::LossBackward => ShapeFacts::new(
                "the script calls loss.backward() directly, and not the engine's backward",
                None,
            )
            .only_on(
                Engine::DeepSpeed,
                "the other engines have no backward of their own; use --engine deepspeed",
            ),
            Shape::CoalescedReduction => ShapeFacts::new(
                "the gradients of a step are reduced in coalesce_grad_reduction()",
                None,
            )
            .only_on(
                Engine::DeepSpeed,
                "only DeepSpeed has coalesce_grad_reduction; use --engine deepspeed",
            ),
            Shape::WarmUp => {
                ShapeFacts::new("a scheduler halves the learning rate of the first step", None)
            }
        }
    }

    /// The description of the shape, in words.
    pub const fn describe(self) -> &'static str {
        self.facts().describe
    }

    /// The parameter of the coded model that the shape is about, if the shape is about a single one.
    pub const fn param(self) -> Option<&'static str> {
        self.facts().param
    }

    /// The block of the coded model that the shape is about, if the shape is about a block.
    pub const fn block(self) -> Option<&'static str> {
        self.facts().block
    }

    /// True if the shape is about the parameter with this name, or about the block of this parameter.
    pub fn is_about(self, param: &str) -> bool {
        let facts = self.facts();
        let is_in =
            |block| param.strip_prefix(block).is_some_and(|rest: &str| rest.starts_with('.'));
        facts.param == Some(param) || facts.block.is_some_and(is_in)
    }

    /// True if at least one microbatch does not reach every trainable parameter.
    pub const fn leaves_unused(self) -> bool {
        self.facts().leaves_unused
    }

    /// True if every parameter has its whole gradient after one backward, and the first parameter gets its gradient
    /// last.
    pub const fn allows_delayed_parameters(self) -> bool {
        !self.leaves_unused()
            && !matches!(
                self,
                Shape::Tied
                    | Shape::SeveralBackwards
                    | Shape::PenaltyBackward
                    | Shape::Bypass
                    | Shape::Unmanaged
            )
    }

    /// The only engine that has the shape, and the advice for other engines; `None` if any engine may have the shape.
    pub const fn only_on(self) -> Option<(Engine, &'static str)> {
        self.facts().only_on
    }

    /// The reason why this shape and `other` cannot be combined; `None` if they can be combined.
    pub const fn excludes(self, other: Shape) -> Option<&'static str> {
        match (self, other) {
            (Shape::UnusedFirst, Shape::Bypass) => Some(
                "both shapes are about the same parameter, which one shape uses and the other does not",
            ),
            (Shape::UnusedAlways, Shape::InfinityOnOneRank) => {
                Some("a parameter that is never used has no gradient that could be infinite")
            }
            (Shape::InfinityOnOneRank, Shape::WarmUp) => {
                Some("a scheduler may stand still in a step that is skipped")
            }
            (Shape::TupleOutput, Shape::DictOutput) => {
                Some("forward returns either a tuple or a dict")
            }
            _ => None,
        }
    }
}
