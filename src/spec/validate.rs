//! From what was asked for to what is run: defaults, contradictions, and what is not there yet.

use super::{Dataflow, Dtype, Engine, Fault, Model, Optimizer, Plan, RunSpec};

/// Ranks when nobody says how many: the fewest that can disagree.
pub const DEFAULT_WORLD_SIZE: usize = 2;

/// What was asked for on the command line, in the environment and in files. A value that nobody
/// gave is `None`.
#[derive(Clone, Debug, Default)]
pub struct SpecRequest {
    /// `--engine`
    pub engine: Option<Engine>,
    /// `--stage`
    pub stage: Option<u8>,
    /// `--nproc-per-node`, as a number
    pub world_size: Option<usize>,
    /// `--ga`
    pub gradient_accumulation_steps: Option<usize>,
    /// `--steps`
    pub steps: Option<usize>,
    /// `--dtype`
    pub dtype: Option<Dtype>,
    /// `--grad-accum-dtype`
    pub grad_accum_dtype: Option<Dtype>,
    /// `--comm-dtype`
    pub comm_dtype: Option<Dtype>,
    /// `--dataflow`
    pub dataflow: Option<Dataflow>,
    /// `--reduce-bucket-size`
    pub reduce_bucket_size: Option<usize>,
    /// `--model`
    pub model: Option<Model>,
    /// `train_micro_batch_size_per_gpu`
    pub micro_batch_size: Option<usize>,
    /// `--optimizer`, or a DeepSpeed file's `optimizer`
    pub optimizer: Option<Optimizer>,
    /// `--seed`
    pub seed: Option<u64>,
    /// `--inject`
    pub inject: Option<Fault>,
    /// `--timeout`
    pub timeout_s: Option<u64>,
}

/// Why a request cannot be run. Each message says what to do instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The engine exists in the contract but not in this release.
    #[error("--engine {0}: this release of zprobe has only the native engine; use --engine native")]
    Engine(Engine),
    /// No such ZeRO stage.
    #[error("--stage {0}: ZeRO stages are 0, 1, 2 and 3")]
    NoSuchStage(u8),
    /// The stage exists in the contract but not in this release.
    #[error(
        "--stage {0}: stage {0} is not there yet; the native engine of this release has stage 1"
    )]
    Stage(u8),
    /// The dtype exists in the contract but not in this release.
    #[error(
        "{flag} fp16: fp16 is not there yet; the native engine of this release has bf16 and fp32"
    )]
    Fp16 {
        /// Flag that asked for it.
        flag: &'static str,
    },
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
    /// A fault that the chosen dataflow has no place for.
    #[error("--inject {fault}: {reason}")]
    FaultHasNoPlace {
        /// The fault.
        fault: Fault,
        /// Why, and what to use instead.
        reason: &'static str,
    },
}

impl SpecRequest {
    /// Fills in every default and refuses every contradiction.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn resolve(self) -> Result<RunSpec, Invalid> {
        let engine = self.engine.unwrap_or(Engine::Native);
        if engine != Engine::Native {
            return Err(Invalid::Engine(engine));
        }
        let stage = self.stage.unwrap_or(1);
        match stage {
            1 => {}
            0 | 2 | 3 => return Err(Invalid::Stage(stage)),
            _ => return Err(Invalid::NoSuchStage(stage)),
        }
        let dtype = self.dtype.unwrap_or(Dtype::Bf16);
        let grad_accum_dtype = self.grad_accum_dtype.unwrap_or(Dtype::Fp32);
        let dataflow = self.dataflow.unwrap_or_else(|| deepspeed_dataflow(dtype, grad_accum_dtype));
        // DeepSpeed communicates in the dtype of the buffer that it reduces unless told otherwise:
        // the flat accumulator's, or the model's for IPG buckets.
        let comm_dtype = self.comm_dtype.unwrap_or(match dataflow {
            Dataflow::Accumulator => grad_accum_dtype,
            Dataflow::IpgBucket => dtype,
        });
        for (flag, asked) in [
            ("--dtype", dtype),
            ("--grad-accum-dtype", grad_accum_dtype),
            ("--comm-dtype", comm_dtype),
        ] {
            if asked == Dtype::Fp16 {
                return Err(Invalid::Fp16 { flag });
            }
        }
        if grad_accum_dtype == Dtype::Bf16 && dtype == Dtype::Fp32 {
            return Err(Invalid::NarrowAccumulation { accum: grad_accum_dtype, model: dtype });
        }
        let at_least_one = |flag, asked: Option<usize>, default| match asked {
            Some(0) => Err(Invalid::Zero { flag }),
            Some(count) => Ok(count),
            None => Ok(default),
        };
        let world_size = at_least_one("--nproc-per-node", self.world_size, DEFAULT_WORLD_SIZE)?;
        let ga = at_least_one("--ga", self.gradient_accumulation_steps, 4)?;
        let steps = at_least_one("--steps", self.steps, 2)?;
        let micro_batch_size = at_least_one("--micro-batch-size", self.micro_batch_size, 4)?;
        let timeout_s = self.timeout_s.unwrap_or(60);
        if timeout_s == 0 {
            return Err(Invalid::Zero { flag: "--timeout" });
        }
        let model = self.model.unwrap_or(Model::Coded);
        let seed = self.seed.unwrap_or(0);
        let contributions = steps.saturating_mul(world_size).saturating_mul(ga).min(1 << 30);
        let default_bucket = Plan::default_bucket_size(model, contributions, seed);
        let spec = RunSpec {
            engine,
            stage,
            world_size,
            gradient_accumulation_steps: ga,
            steps,
            dtype,
            grad_accum_dtype,
            comm_dtype,
            dataflow,
            reduce_bucket_size: at_least_one(
                "--reduce-bucket-size",
                self.reduce_bucket_size,
                default_bucket,
            )?,
            model,
            micro_batch_size,
            optimizer: self.optimizer.unwrap_or(match model {
                Model::Coded => Optimizer::EXACT_SGD,
                Model::Mlp => Optimizer::ADAMW,
            }),
            seed,
            inject: self.inject,
            timeout_s,
        };
        spec.check_size()?;
        check_exactness(&spec)?;
        check_fault(&spec)?;
        Ok(spec)
    }
}

impl RunSpec {
    /// Refuses counts of 0, and counts so large that arithmetic with them could overflow.
    ///
    /// # Errors
    /// The first count that is out of range.
    pub fn check_size(&self) -> Result<(), Invalid> {
        const MOST: usize = 1 << 16;
        let timeout_s = usize::try_from(self.timeout_s).unwrap_or(usize::MAX);
        for (flag, value, limit) in [
            ("--nproc-per-node", self.world_size, MOST),
            ("--ga", self.gradient_accumulation_steps, MOST),
            ("--steps", self.steps, MOST),
            ("--micro-batch-size", self.micro_batch_size, MOST),
            ("--timeout", timeout_s, 1_000_000),
        ] {
            match value {
                0 => return Err(Invalid::Zero { flag }),
                value if value > limit => return Err(Invalid::TooLarge { flag, value, limit }),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The dataflow that DeepSpeed's stage 1 takes for these dtypes.
fn deepspeed_dataflow(dtype: Dtype, grad_accum_dtype: Dtype) -> Dataflow {
    if dtype == Dtype::Bf16 && grad_accum_dtype == Dtype::Fp32 {
        Dataflow::Accumulator
    } else {
        Dataflow::IpgBucket
    }
}

/// Every partial sum of codes is an integer of at most `W·GA`; refuse dtypes that cannot hold it.
///
/// The accumulator dataflow sums over the ranks before it divides by `W`, so that on its wire are
/// multiples of `W`, for which only the odd part of `W` takes up significant bits.
fn check_exactness(spec: &RunSpec) -> Result<(), Invalid> {
    if spec.model != Model::Coded {
        return Ok(());
    }
    let contributions = spec.contributions_per_step();
    let odd_part = spec.world_size >> spec.world_size.trailing_zeros();
    let undivided = if spec.dataflow == Dataflow::Accumulator { odd_part } else { 1 };
    for (flag, dtype, multiple) in [
        ("--grad-accum-dtype", spec.grad_accum_dtype, 1),
        ("--comm-dtype", spec.comm_dtype, undivided),
    ] {
        let limit = dtype.exact_integers() / multiple;
        if contributions > limit {
            return Err(Invalid::Inexact {
                world_size: spec.world_size,
                ga: spec.gradient_accumulation_steps,
                contributions,
                dtype,
                limit,
                flag,
            });
        }
    }
    Ok(())
}

fn check_fault(spec: &RunSpec) -> Result<(), Invalid> {
    let reason = match (spec.inject, spec.dataflow) {
        (Some(Fault::DeadHooks | Fault::EmptyBucketFlush), Dataflow::Accumulator) => {
            "the accumulator dataflow has no hooks and no buckets; add --dataflow ipg-bucket"
        }
        _ => return Ok(()),
    };
    spec.inject.map_or(Ok(()), |fault| Err(Invalid::FaultHasNoPlace { fault, reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_that_carries_sums_not_yet_divided_holds_fewer_contributions() {
        let request = |dataflow, ga| SpecRequest {
            world_size: Some(7),
            gradient_accumulation_steps: Some(ga),
            comm_dtype: Some(Dtype::Bf16),
            dataflow: Some(dataflow),
            ..SpecRequest::default()
        };
        // 7·7·5 = 245 is exact in bf16, 7·7·6 = 294 is not.
        assert!(request(Dataflow::Accumulator, 5).resolve().is_ok());
        assert!(request(Dataflow::Accumulator, 6).resolve().is_err());
        assert!(request(Dataflow::IpgBucket, 6).resolve().is_ok());
    }

    #[test]
    fn counts_that_would_overflow_are_refused_by_name() {
        let request = SpecRequest { steps: Some(usize::MAX), ..SpecRequest::default() };
        let limit = 1 << 16;
        let refusal = Invalid::TooLarge { flag: "--steps", value: usize::MAX, limit };
        assert_eq!(request.resolve(), Err(refusal));
    }
}
