//! The reasons why a request cannot be run.

use std::fmt;

use bytesize::ByteSize;

use super::{Dtype, Engine, Fault, Model, NoCuda, Shape};

/// The reason why a request cannot be run. Each message says what to do instead.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// The engine does not have the requested setting.
    #[error("{flag}: the {engine} engine has no such setting; {advice}")]
    NotOfThisEngine {
        /// The flag of the setting.
        flag: &'static str,
        /// The engine under test.
        engine: Engine,
        /// The advice on what to do instead.
        advice: String,
    },
    /// A ZeRO stage that does not exist.
    #[error("--stage {0}: ZeRO stages are 0, 1, 2 and 3")]
    NoSuchStage(u8),
    /// A count that must be at least 1 is 0.
    #[error("{flag} 0: must be at least 1")]
    Zero {
        /// The flag of the count.
        flag: &'static str,
    },
    /// A count that is too large for any machine.
    #[error("{flag} {value}: at most {limit}")]
    TooLarge {
        /// The flag of the count.
        flag: &'static str,
        /// The requested count.
        value: usize,
        /// The largest count that is accepted.
        limit: usize,
    },
    /// The accumulation dtype has fewer bits than the model's gradients.
    #[error(
        "--grad-accum-dtype {accum} with --dtype {model}: no supported engine accumulates in a \
         narrower dtype than that of the gradients; use {model}"
    )]
    NarrowAccumulation {
        /// The accumulation dtype.
        accum: Dtype,
        /// The dtype of the model.
        model: Dtype,
    },
    /// The sums of codes would not be exact.
    #[error(
        "{world_size} ranks × {ga} microbatches: sums of {contributions} codes are not exact in \
         {dtype} (at most {limit}); use {flag} fp32, fewer microbatches, or --model mlp"
    )]
    Inexact {
        /// The number of ranks.
        world_size: usize,
        /// The number of microbatches per step.
        ga: usize,
        /// The number of contributions per step.
        contributions: usize,
        /// The dtype that is too narrow.
        dtype: Dtype,
        /// The maximum number of contributions whose sum is exact in the dtype.
        limit: usize,
        /// The flag that widens the dtype.
        flag: &'static str,
    },
    /// The sums of codes would exceed the range of fp16.
    #[error(
        "--loss-scale {scale}: sums of codes would reach {largest}, which fp16 cannot hold; use a \
         smaller --loss-scale"
    )]
    Overflow {
        /// The requested loss scale.
        scale: f64,
        /// The largest sum of codes.
        largest: f64,
    },
    /// A shape is combined with a model other than the coded one.
    #[error(
        "--shape {shape} with --model {model}: only the coded model has shapes; use --model coded"
    )]
    ShapeWithoutCodes {
        /// The requested shape.
        shape: Shape,
        /// The requested model.
        model: Model,
    },
    /// Two shapes cannot be combined.
    #[error("--shape {first} --shape {second}: {reason}; leave out one of the two")]
    ShapesContradict {
        /// The first shape.
        first: Shape,
        /// The second shape.
        second: Shape,
        /// The reason why the two shapes cannot be combined.
        reason: &'static str,
    },
    /// CUDA was requested, and cannot be used.
    #[error("{flag} is not possible on this machine:{missing}")]
    NoCuda {
        /// The flag that asks for CUDA.
        flag: &'static str,
        /// All parts of CUDA that are missing.
        missing: NoCuda,
    },
    /// CUDA was requested in a command that does not look for GPUs.
    #[error(
        "{flag}: only `zprobe run` without a user's script or launcher uses GPUs; leave out the flag"
    )]
    GpusNotLookedFor {
        /// The flag that asks for CUDA.
        flag: &'static str,
    },
    /// More ranks than GPUs were requested with NCCL.
    #[error(
        "--backend nccl: NCCL refuses two ranks on one GPU, and there are {gpus} for {world_size} \
         ranks; use --backend gloo, or --nproc-per-node {gpus}"
    )]
    RanksShareGpus {
        /// The number of ranks.
        world_size: usize,
        /// The number of GPUs.
        gpus: usize,
    },
    /// The trace would exceed its budget even if as much as possible is left out.
    #[error(
        "--trace-budget {}: this run needs at least {needed}; use --trace-budget {needed}, or fewer \
         ranks, microbatches or --parameters",
        .budget.display().si().to_string().replace(' ', ""),
        needed = .needed.display().si().to_string().replace(' ', "")
    )]
    TraceBudget {
        /// The requested budget.
        budget: ByteSize,
        /// The budget that the run needs.
        needed: ByteSize,
    },
    /// The settings contradict each other, or the engine.
    #[error("{asked}: {reason}")]
    Contradiction {
        /// The requested flags.
        asked: String,
        /// The reason why the request is refused, and what to request instead.
        reason: &'static str,
    },
    /// The run has no place for the fault.
    #[error("--inject {fault}: {reason}")]
    FaultHasNoPlace {
        /// The injected fault.
        fault: Fault,
        /// The reason why the run has no place for the fault, and what to use instead.
        reason: &'static str,
    },
}

impl Invalid {
    /// The problem of settings that contradict each other, or the engine.
    pub(super) fn contradiction(asked: impl Into<String>, reason: &'static str) -> Self {
        Self::Contradiction { asked: asked.into(), reason }
    }
}

/// All problems of a request.
///
/// A single problem is displayed as its own message, several problems as a summary and one indented line for each
/// problem.
#[derive(Debug, Default, PartialEq)]
pub struct Refusal(Vec<Invalid>);

impl Refusal {
    /// Adds the problem if the check failed, and returns the checked value if the check passed.
    pub(super) fn unless<T>(&mut self, checked: Result<T, Invalid>) -> Option<T> {
        checked.map_err(|problem| self.0.push(problem)).ok()
    }

    /// Adds several problems.
    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Invalid>) {
        self.0.extend(problems);
    }

    /// Returns the refusal as an error if it has any problems.
    pub(super) fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }

    /// All problems of the request; at least one.
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
