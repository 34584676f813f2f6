//! What is unusual about the model, or about how it is used: shapes in which real bugs hide.

use super::named_enum;

named_enum! {
    /// Something unusual about the model or its use. Shapes combine.
    ///
    /// Whatever the shapes, the coded model has a parameter larger than the default bucket and
    /// parameters that cross partition boundaries.
    pub enum Shape {
        /// A parameter is not used in the first microbatch of a step.
        UnusedFirst = "unused-first",
        /// A parameter is not used in the last microbatch of a step.
        UnusedLast = "unused-last",
        /// A parameter is never used.
        UnusedAlways = "unused-always",
        /// A parameter is used in every other step, beginning with the first.
        UnusedAlternating = "unused-alternating",
        /// A parameter is used twice in each microbatch.
        Tied = "tied",
        /// A parameter is frozen: it requires no gradient.
        Frozen = "frozen",
        /// A term of the loss uses a parameter beside the engine's forward.
        Bypass = "bypass",
        /// Forward returns a tuple of loss and logits.
        TupleOutput = "tuple-output",
        /// Forward returns a dict of loss and logits.
        DictOutput = "dict-output",
        /// One element of one gradient is infinite, on one rank, in the first microbatch.
        InfinityOnOneRank = "infinity-on-one-rank",
        /// The loss of each microbatch goes backward in two parts.
        SeveralBackwards = "several-backwards",
        /// After the loss, a penalty on a parameter goes backward that no forward of the engine is
        /// part of.
        PenaltyBackward = "penalty-backward",
        /// The last microbatch's loss reaches only a tensor that the engine does not manage.
        Unmanaged = "unmanaged",
        /// The flag that `no_sync` switches is set between forward and backward: a user's mistake
        /// with DDP, whose forward has looked at it by then.
        LateNoSync = "late-no-sync",
        /// Each rank holds an expert of its own, to which all ranks send data: expert parallelism
        /// over all ranks. All experts are sent the same, so that they stay alike.
        Experts = "experts",
    }
}

impl Shape {
    /// What is unusual, in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Shape::UnusedFirst => "a parameter is unused in the first microbatch of each step",
            Shape::UnusedLast => "a parameter is unused in the last microbatch of each step",
            Shape::UnusedAlways => "a parameter is never used",
            Shape::UnusedAlternating => "a parameter is used in one step and unused in the next",
            Shape::Tied => "a parameter is used twice in each microbatch",
            Shape::Frozen => "a parameter requires no gradient",
            Shape::Bypass => "a term of the loss uses a parameter beside the engine's forward",
            Shape::TupleOutput => "forward returns a tuple of loss and logits",
            Shape::DictOutput => "forward returns a dict of loss and logits",
            Shape::InfinityOnOneRank => "one element of one rank's gradient is infinite",
            Shape::SeveralBackwards => "each microbatch's loss goes backward in two parts",
            Shape::PenaltyBackward => {
                "a penalty goes backward by itself, beside the engine's forward"
            }
            Shape::Unmanaged => "the last microbatch reaches only a tensor outside of the engine",
            Shape::LateNoSync => "DDP's no_sync flag is set after forward, a user's mistake",
            Shape::Experts => "each rank holds an expert, to which all ranks send the same data",
        }
    }

    /// Whether some microbatch does not reach every trainable parameter.
    pub const fn leaves_unused(self) -> bool {
        matches!(
            self,
            Shape::UnusedFirst | Shape::UnusedLast | Shape::UnusedAlways | Shape::UnusedAlternating
        )
    }

    /// Why this shape and `other` cannot be had together, if they cannot.
    pub const fn excludes(self, other: Shape) -> Option<&'static str> {
        match (self, other) {
            (Shape::UnusedFirst, Shape::Bypass) => {
                Some("both are about the same parameter, which one uses and the other does not")
            }
            (Shape::UnusedAlways, Shape::InfinityOnOneRank) => {
                Some("a parameter that is never used has no gradient to be infinite in")
            }
            (Shape::TupleOutput, Shape::DictOutput) => {
                Some("forward returns either a tuple or a dict")
            }
            _ => None,
        }
    }

    /// The parameter of the coded model that the shape is about, if it is one.
    pub const fn param(self) -> Option<&'static str> {
        match self {
            Shape::UnusedFirst | Shape::Bypass => Some("layers.0.attn.weight"),
            Shape::UnusedLast | Shape::PenaltyBackward => Some("layers.0.mlp.weight"),
            Shape::UnusedAlways | Shape::InfinityOnOneRank => Some("layers.0.norm.weight"),
            Shape::UnusedAlternating => Some("embed.weight"),
            Shape::Tied => Some("position.weight"),
            Shape::Frozen => Some("frozen.weight"),
            Shape::Experts => Some("expert.weight"),
            Shape::TupleOutput
            | Shape::DictOutput
            | Shape::SeveralBackwards
            | Shape::Unmanaged
            | Shape::LateNoSync => None,
        }
    }
}
