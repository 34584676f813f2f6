//! Reasons why a request cannot be run.

use std::fmt;

use bytesize::ByteSize;

use super::{Dtype, Engine, Fault, Model, NoCuda, Shape};

/// Reason why a request cannot be run. Each message says what to do instead.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// The engine has no such setting.
    #[error("{flag}: the {engine} engine has no such setting; {advice}")]
    NotOfThisEngine {
        /// The flag.
        flag: &'static str,
        /// The engine.
        engine: Engine,
        /// Advice on what to do instead.
        advice: String,
    },
    /// A ZeRO stage that does not exist.
    #[error("--stage {0}: ZeRO stages are 0, 1, 2 and 3")]
    NoSuchStage(u8),
    /// A count that must be at least 1 is 0.
    #[error("{flag} 0: must be at least 1")]
    Zero {
        /// The flag.
        flag: &'static str,
    },
    /// A count that is too large for any machine.
    #[error("{flag} {value}: at most {limit}")]
    TooLarge {
        /// The flag.
        flag: &'static str,
        /// Count that was asked for.
        value: usize,
        /// The largest count that is accepted.
        limit: usize,
    },
    /// Accumulating in fewer bits than the model's gradients have.
    #[error(
        "--grad-accum-dtype {accum} with --dtype {model}: accumulating in a narrower dtype than the \
         gradients' is what no supported engine does; use {model}"
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
    /// A shape with a model other than the coded one.
    #[error(
        "--shape {shape} with --model {model}: only the coded model has shapes; use --model coded"
    )]
    ShapeWithoutCodes {
        /// The shape.
        shape: Shape,
        /// The model.
        model: Model,
    },
    /// Two shapes that cannot be combined.
    #[error("--shape {first} --shape {second}: {reason}; leave one of them out")]
    ShapesContradict {
        /// The first shape.
        first: Shape,
        /// The second shape.
        second: Shape,
        /// Reason why they cannot be combined.
        reason: &'static str,
    },
    /// CUDA was asked for and cannot be had.
    #[error("{flag} is not possible on this machine:{missing}")]
    NoCuda {
        /// Flag that asks for CUDA.
        flag: &'static str,
        /// All parts of CUDA that are missing.
        missing: NoCuda,
    },
    /// CUDA was asked for in a command that does not look for GPUs.
    #[error("{flag}: only `zprobe run` with ranks of its own looks for GPUs; leave it out")]
    GpusNotLookedFor {
        /// Flag that asks for CUDA.
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
    /// A trace that would exceed its budget even with as much left out as possible.
    #[error(
        "--trace-budget {}: this run must be allowed {needed}; use --trace-budget {needed}, or fewer \
         ranks, microbatches or --parameters",
        .budget.display().si().to_string().replace(' ', ""),
        needed = .needed.display().si().to_string().replace(' ', "")
    )]
    TraceBudget {
        /// Budget that was asked for.
        budget: ByteSize,
        /// Budget that the run needs.
        needed: ByteSize,
    },
    /// Settings that contradict each other, or the engine.
    #[error("{asked}: {reason}")]
    Contradiction {
        /// Flags that were asked for.
        asked: String,
        /// Reason why it is refused, and what to ask for instead.
        reason: &'static str,
    },
    /// A fault that has no place in the run.
    #[error("--inject {fault}: {reason}")]
    FaultHasNoPlace {
        /// The fault.
        fault: Fault,
        /// Reason why it has no place, and what to use instead.
        reason: &'static str,
    },
}

impl Invalid {
    /// Problem of settings that contradict each other, or the engine.
    pub(super) fn contradiction(asked: impl Into<String>, reason: &'static str) -> Self {
        Self::Contradiction { asked: asked.into(), reason }
    }
}

/// All problems of a request.
///
/// A single problem is displayed as its own message, several as a summary and one indented line for
/// each.
#[derive(Debug, Default, PartialEq)]
pub struct Refusal(Vec<Invalid>);

impl Refusal {
    /// Adds the problem if the check failed, and returns its value if it passed.
    pub(super) fn unless<T>(&mut self, checked: Result<T, Invalid>) -> Option<T> {
        checked.map_err(|problem| self.0.push(problem)).ok()
    }

    /// Adds problems.
    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Invalid>) {
        self.0.extend(problems);
    }

    /// Returns an error if there are any problems.
    pub(super) fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The problems; at least one.
    pub fn problems(&self) -> &[Invalid] {
        &self.0
    }

    /// All problems on one line.
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
        write!(f, "this run is not possible, for {} reasons:", self.0.len())?;
        for problem in &self.0 {
            write!(f, "\n  {}", problem.to_string().replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}
