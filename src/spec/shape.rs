//! What is unusual about the model, or about how it is used: shapes in which real bugs hide.

use super::{Engine, named_enum};

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

/// The facts about a shape, beside which microbatches use its parameter: see [`super::Usage`].
struct Row {
    /// What is unusual, in words.
    describe: &'static str,
    /// The parameter of the coded model that the shape is about, if it is one.
    param: Option<&'static str>,
    /// Whether some microbatch does not reach every trainable parameter.
    leaves_unused: bool,
    /// Whether a script without zprobe shows the same; see [`crate::attachment::standalone`].
    in_scripts: bool,
    /// The one engine that has it, and what to do about others.
    only_on: Option<(Engine, &'static str)>,
}

impl Row {
    /// A shape that is about this parameter, if about one.
    const fn new(describe: &'static str, param: Option<&'static str>) -> Self {
        Self { describe, param, leaves_unused: false, in_scripts: false, only_on: None }
    }

    /// A shape in which some microbatches do not use this parameter.
    const fn unused(describe: &'static str, param: &'static str) -> Self {
        Self { leaves_unused: true, in_scripts: true, ..Self::new(describe, Some(param)) }
    }

    /// The same shape, which scripts have too.
    const fn in_scripts(self) -> Self {
        Self { in_scripts: true, ..self }
    }

    /// The same shape, which only one engine has.
    const fn only_on(self, engine: Engine, advice: &'static str) -> Self {
        Self { only_on: Some((engine, advice)), ..self }
    }
}

impl Shape {
    const fn row(self) -> Row {
        match self {
            Shape::UnusedFirst => Row::unused(
                "a parameter is unused in the first microbatch of each step",
                "layers.0.attn.weight",
            ),
            Shape::UnusedLast => Row::unused(
                "a parameter is unused in the last microbatch of each step",
                "layers.0.mlp.weight",
            ),
            Shape::UnusedAlways => Row::unused("a parameter is never used", "layers.0.norm.weight"),
            Shape::UnusedAlternating => Row::unused(
                "a parameter is used in one step and unused in the next",
                "embed.weight",
            ),
            Shape::Tied => {
                Row::new("a parameter is used twice in each microbatch", Some("position.weight"))
            }
            Shape::Frozen => {
                Row::new("a parameter requires no gradient", Some("frozen.weight")).in_scripts()
            }
            Shape::Bypass => Row::new(
                "a term of the loss uses a parameter beside the engine's forward",
                Some("layers.0.attn.weight"),
            ),
            Shape::TupleOutput => {
                Row::new("forward returns a tuple of loss and logits", None).in_scripts()
            }
            Shape::DictOutput => {
                Row::new("forward returns a dict of loss and logits", None).in_scripts()
            }
            Shape::InfinityOnOneRank => Row::new(
                "one element of one rank's gradient is infinite",
                Some("layers.0.norm.weight"),
            ),
            Shape::SeveralBackwards => {
                Row::new("each microbatch's loss goes backward in two parts", None).in_scripts()
            }
            Shape::PenaltyBackward => Row::new(
                "a penalty goes backward by itself, beside the engine's forward",
                Some("layers.0.mlp.weight"),
            ),
            Shape::Unmanaged => {
                Row::new("the last microbatch reaches only a tensor outside of the engine", None)
            }
            Shape::LateNoSync => {
                Row::new("DDP's no_sync flag is set after forward, a user's mistake", None)
                    .only_on(Engine::Ddp, "only DDP has no_sync; use --engine ddp")
            }
            Shape::Experts => Row::new(
                "each rank holds an expert, to which all ranks send the same data",
                Some("expert.weight"),
            )
            .only_on(
                Engine::DeepSpeed,
                "only DeepSpeed knows parameters that are experts; use --engine deepspeed",
            ),
        }
    }

    /// What is unusual, in words.
    pub const fn describe(self) -> &'static str {
        self.row().describe
    }

    /// The parameter of the coded model that the shape is about, if it is one.
    pub const fn param(self) -> Option<&'static str> {
        self.row().param
    }

    /// Whether some microbatch does not reach every trainable parameter.
    pub const fn leaves_unused(self) -> bool {
        self.row().leaves_unused
    }

    /// Whether a script without zprobe shows the same.
    pub const fn is_in_scripts(self) -> bool {
        self.row().in_scripts
    }

    /// The one engine that has the shape, and what to do about others; none if any may have it.
    pub const fn only_on(self) -> Option<(Engine, &'static str)> {
        self.row().only_on
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
}
