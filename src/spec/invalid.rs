//! Why a request cannot be run.

use std::fmt;

use bytesize::ByteSize;

use super::{Dtype, Engine, Fault, Model, NoCuda, Shape};

/// Why a request cannot be run. Each message says what to do instead.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// The engine has no such setting.
    #[error("{flag}: the {engine} engine has no such setting; {advice}")]
    NotOfThisEngine {
        /// The flag.
        flag: &'static str,
        /// The engine.
        engine: Engine,
        /// What to do instead.
        advice: String,
    },
    /// No such ZeRO stage.
    #[error("--stage {0}: ZeRO stages are 0, 1, 2 and 3")]
    NoSuchStage(u8),
    /// A count that must be at least 1 is 0.
    #[error("{flag} 0: must be at least 1")]
    Zero {
        /// The flag.
        flag: &'static str,
    },
    /// A count that no machine could run.
    #[error("{flag} {value}: at most {limit}")]
    TooLarge {
        /// The flag.
        flag: &'static str,
        /// What was asked for.
        value: usize,
        /// The most there can be.
        limit: usize,
    },
    /// Accumulating in fewer bits than the model's gradients have.
    #[error(
        "--grad-accum-dtype {accum} with --dtype {model}: accumulating in a narrower dtype than the \
         gradients' is something that no supported engine does; use {model}"
    )]
    NarrowAccumulation {
        /// Accumulation dtype.
        accum: Dtype,
        /// Model dtype.
        model: Dtype,
    },
    /// Sums of codes would not be exact.
    #[error(
        "{world_size} ranks × {ga} microbatches: sums of {contributions} codes are not exact in \
         {dtype} (at most {limit}); use {flag} fp32, fewer microbatches, or --model mlp"
    )]
    Inexact {
        /// Number of ranks.
        world_size: usize,
        /// Microbatches per step.
        ga: usize,
        /// Contributions per step.
        contributions: usize,
        /// The dtype that is too narrow.
        dtype: Dtype,
        /// Most contributions that it holds exactly.
        limit: usize,
        /// Flag that widens it.
        flag: &'static str,
    },
    /// Sums of codes would leave the range of fp16.
    #[error(
        "--loss-scale {scale}: sums of codes would reach {largest}, which fp16 cannot hold; use a \
         smaller --loss-scale"
    )]
    Overflow {
        /// The loss scale.
        scale: f64,
        /// The largest sum.
        largest: f64,
    },
    /// A shape of a model that has none.
    #[error(
        "--shape {shape} with --model {model}: only the coded model has shapes; use --model coded"
    )]
    ShapeWithoutCodes {
        /// The shape.
        shape: Shape,
        /// The model.
        model: Model,
    },
    /// Two shapes that no model has at once.
    #[error("--shape {first} --shape {second}: {reason}; leave one of them out")]
    ShapesContradict {
        /// One shape.
        first: Shape,
        /// The other.
        second: Shape,
        /// Why not.
        reason: &'static str,
    },
    /// CUDA was asked for and cannot be had.
    #[error("{flag} cannot be had here:{missing}")]
    NoCuda {
        /// What asks for it.
        flag: &'static str,
        /// What is missing.
        missing: NoCuda,
    },
    /// CUDA was asked for where the native engine does not look for it.
    #[error("{flag}: only `zprobe run` with ranks of its own looks for GPUs; leave it out")]
    GpusNotLookedFor {
        /// What asks for it.
        flag: &'static str,
    },
    /// More ranks than GPUs, over NCCL.
    #[error(
        "--backend nccl: NCCL refuses two ranks on one GPU, and there are {gpus} for {world_size} \
         ranks; use --backend gloo, or --nproc-per-node {gpus}"
    )]
    RanksShareGpus {
        /// Number of ranks.
        world_size: usize,
        /// Number of GPUs.
        gpus: usize,
    },
    /// A trace that would be larger than it may be, with as much left out as can be.
    #[error(
        "--trace-budget {}: this run must be allowed {needed}; use --trace-budget {needed}, or fewer \
         ranks, microbatches or --parameters",
        .budget.display().si().to_string().replace(' ', ""),
        needed = .needed.display().si().to_string().replace(' ', "")
    )]
    TraceBudget {
        /// What it may take.
        budget: ByteSize,
        /// What it takes.
        needed: ByteSize,
    },
    /// Two things that do not go together.
    #[error("{asked}: {reason}")]
    Contradiction {
        /// What was asked for.
        asked: String,
        /// Why not, and what to ask for instead.
        reason: &'static str,
    },
    /// A fault that the chosen dataflow has no place for.
    #[error("--inject {fault}: {reason}")]
    FaultHasNoPlace {
        /// The fault.
        fault: Fault,
        /// Why, and what to use instead.
        reason: &'static str,
    },
}

impl Invalid {
    /// Two things that do not go together.
    pub(super) fn contradiction(asked: impl Into<String>, reason: &'static str) -> Self {
        Self::Contradiction { asked: asked.into(), reason }
    }
}

/// Everything that is wrong with a request, at once.
///
/// A single problem displays as itself; several as a summary, and one indented line for each.
#[derive(Debug, Default, PartialEq)]
pub struct Refusal(Vec<Invalid>);

impl Refusal {
    /// Notes what was found wrong, if anything was, and what to go on with.
    pub(super) fn unless<T>(&mut self, checked: Result<T, Invalid>) -> Option<T> {
        checked.map_err(|problem| self.0.push(problem)).ok()
    }

    /// Adds problems.
    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Invalid>) {
        self.0.extend(problems);
    }

    /// Refuses if anything is wrong.
    pub(super) fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The problems; at least one.
    pub fn problems(&self) -> &[Invalid] {
        &self.0
    }

    /// All problems in one line.
    pub fn line(&self) -> String {
        self.0.iter().map(Invalid::to_string).collect::<Vec<_>>().join("; and ")
    }
}

impl From<Invalid> for Refusal {
    fn from(problem: Invalid) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{} things keep this from being run:", self.0.len())?;
        for problem in &self.0 {
            write!(f, "\n  {}", problem.to_string().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
