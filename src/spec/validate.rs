//! From what was asked for to what is run: defaults, contradictions, and what is not there yet.

use super::{
    CommHook, Dataflow, DdpOptions, Dtype, Engine, Fault, Fsdp2Options, LossScale, Model,
    Observation, Offload, Optimizer, Plan, RunSpec, Shape, deepspeed,
};

/// Ranks when nobody says how many: the fewest that can disagree.
pub const DEFAULT_WORLD_SIZE: usize = 2;

/// Bytes in a MiB.
const MIB: f64 = 1_048_576.0;

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
    /// `--offload`
    pub offload: Option<Offload>,
    /// `--overlap-comm`
    pub overlap_comm: Option<bool>,
    /// `--contiguous-gradients`
    pub contiguous_gradients: Option<bool>,
    /// `--reduce-scatter`
    pub reduce_scatter: Option<bool>,
    /// `--immediate-grad-update`
    pub immediate_grad_update: Option<bool>,
    /// `--gradient-clipping`
    pub gradient_clipping: Option<f64>,
    /// `--loss-scale`
    pub loss_scale: Option<LossScale>,
    /// `--bucket-cap-mb`
    pub bucket_cap_mb: Option<f64>,
    /// `--find-unused-parameters`
    pub find_unused_parameters: Option<bool>,
    /// `--static-graph`
    pub static_graph: Option<bool>,
    /// `--gradient-as-bucket-view`
    pub gradient_as_bucket_view: Option<bool>,
    /// `--comm-hook`
    pub comm_hook: Option<CommHook>,
    /// `--reshard-after-forward`
    pub reshard_after_forward: Option<bool>,
    /// The content of `--deepspeed-config`
    pub deepspeed_config: Option<serde_json::Value>,
    /// `--observe`
    pub observe: Option<Observation>,
    /// `--shape`
    pub shapes: Vec<Shape>,
    /// `--model`
    pub model: Option<Model>,
    /// `--parameters`
    pub parameters: Option<usize>,
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
        advice: &'static str,
    },
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

impl SpecRequest {
    /// Fills in every default and refuses every contradiction.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn resolve(mut self) -> Result<RunSpec, Invalid> {
        let engine = self.engine.unwrap_or(Engine::Native);
        self.check_engine(engine)?;
        let stage = self.resolve_stage(engine)?;
        let dtype = self.dtype.unwrap_or(Dtype::Bf16);
        let grad_accum_dtype = self.resolve_grad_accum_dtype(engine, dtype);
        let dataflow = (engine == Engine::Native)
            .then(|| self.dataflow.unwrap_or_else(|| deepspeed_dataflow(dtype, grad_accum_dtype)));
        // DeepSpeed communicates in the dtype of the buffer that it reduces unless told otherwise:
        // the flat accumulator's, or the model's for IPG buckets.
        let comm_dtype = self.comm_dtype.or(match (engine, dataflow) {
            (_, Some(Dataflow::Accumulator)) => Some(grad_accum_dtype),
            (_, Some(Dataflow::IpgBucket)) => Some(dtype),
            (Engine::Ddp, None) => Some(self.comm_hook.map_or(dtype, |hook| hook.dtype(dtype))),
            (Engine::Fsdp2, None) => Some(Dtype::Fp32),
            (_, None) => None,
        });
        if engine == Engine::Native {
            refuse_native_fp16(dtype, grad_accum_dtype, comm_dtype)?;
        }
        // FSDP2 accumulates in its `reduce_dtype`, whatever that is.
        let narrow = grad_accum_dtype == Dtype::Bf16 && dtype == Dtype::Fp32;
        if narrow && engine != Engine::Fsdp2 {
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
        // A real engine is imported first, which a busy machine can take a minute for.
        let timeout_s = self.timeout_s.unwrap_or(if engine == Engine::Native { 60 } else { 180 });
        if timeout_s == 0 {
            return Err(Invalid::Zero { flag: "--timeout" });
        }
        let model = self.model.unwrap_or(Model::Coded);
        let seed = self.seed.unwrap_or(0);
        let mut shapes = std::mem::take(&mut self.shapes);
        shapes.sort_unstable();
        shapes.dedup();
        let mut spec = RunSpec {
            engine,
            stage,
            world_size,
            gradient_accumulation_steps: ga,
            steps,
            dtype,
            grad_accum_dtype,
            comm_dtype,
            dataflow,
            // Set below: how large a bucket should be follows from the model.
            reduce_bucket_size: 1,
            offload: self.offload.unwrap_or(Offload::None),
            overlap_comm: self.overlap_comm,
            contiguous_gradients: self.contiguous_gradients,
            reduce_scatter: self.reduce_scatter,
            immediate_grad_update: self.immediate_grad_update,
            gradient_clipping: self.gradient_clipping.unwrap_or(0.0),
            loss_scale: self.loss_scale.unwrap_or(LossScale::DEFAULT),
            ddp: None,
            fsdp2: (engine == Engine::Fsdp2).then(|| Fsdp2Options {
                reshard_after_forward: self.reshard_after_forward.unwrap_or(true),
            }),
            deepspeed_config: None,
            observe: self.observe.unwrap_or(Observation::Full),
            model,
            parameters: self.parameters,
            shapes,
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
        let default_bucket = Plan::default_bucket_size(&spec);
        spec.reduce_bucket_size =
            at_least_one("--reduce-bucket-size", self.reduce_bucket_size, default_bucket)?;
        spec.ddp = (engine == Engine::Ddp).then(|| DdpOptions {
            bucket_cap_mb: self.bucket_cap_mb.unwrap_or(default_bucket as f64 * 4.0 / MIB),
            find_unused_parameters: self
                .find_unused_parameters
                .unwrap_or_else(|| spec.shapes.iter().any(|shape| shape.leaves_unused())),
            static_graph: self.static_graph.unwrap_or(false),
            gradient_as_bucket_view: self.gradient_as_bucket_view.unwrap_or(false),
            comm_hook: self.comm_hook.unwrap_or(CommHook::None),
        });
        if engine == Engine::DeepSpeed {
            let file = self.deepspeed_config.take();
            spec.deepspeed_config = Some(deepspeed::complete(file, &self, &spec));
        }
        check_shapes(&spec)?;
        check_engines_shapes(&spec)?;
        check_ddp(&spec)?;
        check_fault(&spec)?;
        Ok(spec)
    }
}

impl SpecRequest {
    /// Refuses what the engine has no place for: nothing that was asked for is ignored.
    fn check_engine(&self, engine: Engine) -> Result<(), Invalid> {
        let other = "choose another with --engine";
        let deepspeed_only = "use --engine deepspeed";
        let ddp_only = "use --engine ddp";
        let is_set = |flag: Option<bool>| flag.is_some();
        let (native, deepspeed) = (engine == Engine::Native, engine == Engine::DeepSpeed);
        let (ddp, fsdp2) = (engine == Engine::Ddp, engine == Engine::Fsdp2);
        let rows = [
            ("--dataflow", self.dataflow.is_some(), native, "use --engine native"),
            (
                "--grad-accum-dtype",
                self.grad_accum_dtype.is_some(),
                native || deepspeed,
                "ddp accumulates in --dtype, fsdp2 in --comm-dtype",
            ),
            ("--comm-dtype", self.comm_dtype.is_some(), !ddp, "use --comm-hook"),
            ("--inject", self.inject.is_some(), native, "use --engine native"),
            ("--stage", self.stage.is_some(), native || deepspeed, other),
            ("--reduce-bucket-size", self.reduce_bucket_size.is_some(), native || deepspeed, other),
            ("--offload", self.offload == Some(Offload::Cpu), deepspeed, deepspeed_only),
            ("--overlap-comm", is_set(self.overlap_comm), deepspeed, deepspeed_only),
            (
                "--contiguous-gradients",
                is_set(self.contiguous_gradients),
                deepspeed,
                deepspeed_only,
            ),
            ("--reduce-scatter", is_set(self.reduce_scatter), deepspeed, deepspeed_only),
            (
                "--immediate-grad-update",
                is_set(self.immediate_grad_update),
                deepspeed,
                deepspeed_only,
            ),
            ("--gradient-clipping", self.gradient_clipping.is_some(), !native, other),
            ("--loss-scale", self.loss_scale.is_some(), deepspeed, deepspeed_only),
            ("--bucket-cap-mb", self.bucket_cap_mb.is_some(), ddp, ddp_only),
            ("--find-unused-parameters", is_set(self.find_unused_parameters), ddp, ddp_only),
            ("--static-graph", is_set(self.static_graph), ddp, ddp_only),
            ("--gradient-as-bucket-view", is_set(self.gradient_as_bucket_view), ddp, ddp_only),
            ("--comm-hook", self.comm_hook.is_some(), ddp, ddp_only),
            (
                "--reshard-after-forward",
                is_set(self.reshard_after_forward),
                fsdp2,
                "use --engine fsdp2",
            ),
            ("--observe outcome", self.observe == Some(Observation::Outcome), !native, other),
            ("--shape", !self.shapes.is_empty(), !native, other),
        ];
        match rows.into_iter().find(|(_, asked, has, _)| *asked && !has) {
            Some((flag, _, _, advice)) => Err(Invalid::NotOfThisEngine { flag, engine, advice }),
            None => Ok(()),
        }
    }

    fn resolve_stage(&self, engine: Engine) -> Result<u8, Invalid> {
        let stage = self.stage.unwrap_or(match engine {
            Engine::Native | Engine::DeepSpeed => 1,
            Engine::Ddp => 0,
            Engine::Fsdp2 => 3,
        });
        match (stage, engine) {
            (4.., _) => Err(Invalid::NoSuchStage(stage)),
            (0 | 2 | 3, Engine::Native) => Err(Invalid::Stage(stage)),
            _ => Ok(stage),
        }
    }

    /// DDP accumulates in the parameters' own gradients, FSDP2 in the dtype that it reduces in.
    fn resolve_grad_accum_dtype(&self, engine: Engine, dtype: Dtype) -> Dtype {
        self.grad_accum_dtype.unwrap_or(match engine {
            Engine::Native | Engine::DeepSpeed => Dtype::Fp32,
            Engine::Ddp => dtype,
            Engine::Fsdp2 => self.comm_dtype.unwrap_or(Dtype::Fp32),
        })
    }
}

/// The native engine of this release has no fp16.
fn refuse_native_fp16(dtype: Dtype, accum: Dtype, comm: Option<Dtype>) -> Result<(), Invalid> {
    [("--dtype", Some(dtype)), ("--grad-accum-dtype", Some(accum)), ("--comm-dtype", comm)]
        .into_iter()
        .find(|(_, asked)| *asked == Some(Dtype::Fp16))
        .map_or(Ok(()), |(flag, _)| Err(Invalid::Fp16 { flag }))
}

impl RunSpec {
    /// Refuses counts of 0, and counts so large that arithmetic with them could overflow.
    ///
    /// # Errors
    /// The first count that is out of range.
    pub fn check_size(&self) -> Result<(), Invalid> {
        const MOST: usize = 1 << 16;
        // The native engine records every buffer whole.
        let most_parameters = if self.engine == Engine::Native { 1 << 20 } else { 1 << 36 };
        let timeout_s = usize::try_from(self.timeout_s).unwrap_or(usize::MAX);
        for (flag, value, limit) in [
            ("--nproc-per-node", self.world_size, MOST),
            ("--ga", self.gradient_accumulation_steps, MOST),
            ("--steps", self.steps, MOST),
            ("--micro-batch-size", self.micro_batch_size, MOST),
            ("--timeout", timeout_s, 1_000_000),
            ("--parameters", self.parameters.unwrap_or(1), most_parameters),
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

/// Refuses shapes that the engine leaves no room for.
fn check_engines_shapes(spec: &RunSpec) -> Result<(), Invalid> {
    let has = |shape| spec.has_shape(shape);
    let one_backward = spec.gradient_accumulation_steps == 1 && !has(Shape::SeveralBackwards);
    let rows = [
        (
            Shape::Bypass,
            spec.engine == Engine::Fsdp2,
            "beside the forward, FSDP2's parameters are shards that no loss can use; use --engine ddp",
        ),
        (
            Shape::Bypass,
            spec.engine == Engine::DeepSpeed && spec.stage == 3,
            "beside the forward, stage 3's parameters are empty; use --stage 2",
        ),
        (
            Shape::PenaltyBackward,
            spec.engine != Engine::DeepSpeed || spec.stage == 3,
            "DDP and FSDP2 reduce in what their forward prepares, and stage 3's parameters are \
             empty beside it; use --engine deepspeed with --stage 0, 1 or 2",
        ),
        (Shape::LateNoSync, spec.engine != Engine::Ddp, "only DDP has no_sync; use --engine ddp"),
        (
            Shape::LateNoSync,
            one_backward,
            "no_sync is for all but the last microbatch of a step; use --ga 2 or more",
        ),
        (
            Shape::Experts,
            spec.engine != Engine::DeepSpeed,
            "only DeepSpeed knows parameters that are experts; use --engine deepspeed",
        ),
        (
            Shape::Experts,
            spec.stage == 3,
            "DeepSpeed has no experts in stage 3; use --stage 0, 1 or 2",
        ),
        (
            Shape::Experts,
            spec.world_size == 1,
            "a single rank sends no data to another's expert; use --nproc-per-node 2 or more",
        ),
    ];
    match rows.into_iter().find(|(shape, unfit, _)| has(*shape) && *unfit) {
        Some((shape, _, reason)) => refuse(format!("--shape {shape}"), reason),
        None => Ok(()),
    }
}

/// Refuses settings of DDP that contradict what it is used for.
fn check_ddp(spec: &RunSpec) -> Result<(), Invalid> {
    let Some(ddp) = spec.ddp else { return Ok(()) };
    if !(ddp.bucket_cap_mb * MIB >= 1.0 && ddp.bucket_cap_mb.is_finite()) {
        return refuse(
            format!("--bucket-cap-mb {}", ddp.bucket_cap_mb),
            "a bucket holds at least one byte, which is 0.000001 MiB",
        );
    }
    let accumulates =
        spec.gradient_accumulation_steps > 1 || spec.has_shape(Shape::SeveralBackwards);
    if ddp.static_graph && accumulates {
        // `expect_autograd_hooks_ INTERNAL ASSERT FAILED` in reducer.cpp, seen with torch 2.11 and 2.15: the
        // first backward enqueues a reduction though its forward did not prepare for one.
        return refuse(
            "--static-graph with gradient accumulation".to_owned(),
            "DDP learns the graph in the first backward and reduces then, so that it fails under \
             no_sync; use --ga 1",
        );
    }
    if ddp.static_graph && spec.has_shape(Shape::UnusedAlternating) {
        return refuse(
            "--static-graph with --shape unused-alternating".to_owned(),
            "the graph is not the same in every step, which is what --static-graph promises; drop \
             one of the two",
        );
    }
    Ok(())
}

fn refuse(asked: String, reason: &'static str) -> Result<(), Invalid> {
    Err(Invalid::Contradiction { asked, reason })
}

/// Every partial sum of codes is an integer of at most `W·GA`; refuse dtypes that cannot hold it.
///
/// The accumulator dataflow and FSDP2 sum over the ranks before they divide by `W`, or by what of it
/// is no power of two, so that on their wire are multiples of `W`, for which only the odd part of `W`
/// takes up significant bits.
fn check_exactness(spec: &RunSpec) -> Result<(), Invalid> {
    if spec.model != Model::Coded {
        return Ok(());
    }
    let contributions = spec.contributions_per_step();
    let odd_part = spec.world_size >> spec.world_size.trailing_zeros();
    let divides_last = spec.dataflow == Some(Dataflow::Accumulator) || spec.engine == Engine::Fsdp2;
    let undivided = if divides_last { odd_part } else { 1 };
    for (flag, dtype, multiple) in [
        ("--grad-accum-dtype", spec.grad_accum_dtype, 1),
        ("--comm-dtype", spec.narrowest_comm_dtype(), undivided),
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

/// Shapes are shapes of the coded model, and some contradict each other.
fn check_shapes(spec: &RunSpec) -> Result<(), Invalid> {
    if let (Some(&shape), Model::Mlp) = (spec.shapes.first(), spec.model) {
        return Err(Invalid::ShapeWithoutCodes { shape, model: spec.model });
    }
    for &first in &spec.shapes {
        for &second in &spec.shapes {
            if let Some(reason) = first.excludes(second) {
                return Err(Invalid::ShapesContradict { first, second, reason });
            }
        }
    }
    Ok(())
}

fn check_fault(spec: &RunSpec) -> Result<(), Invalid> {
    let reason = match (spec.inject, spec.dataflow) {
        (Some(Fault::DeadHooks | Fault::EmptyBucketFlush), Some(Dataflow::Accumulator)) => {
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

    fn refusal(request: SpecRequest) -> String {
        request.resolve().map_or_else(|invalid| invalid.to_string(), |_| "it runs".to_owned())
    }

    fn shaped(engine: Engine, shapes: &[Shape]) -> SpecRequest {
        SpecRequest {
            engine: Some(engine),
            shapes: shapes.to_vec(),
            gradient_accumulation_steps: Some(1),
            ..SpecRequest::default()
        }
    }

    #[test]
    fn shapes_that_an_engine_has_no_room_for_are_refused_with_the_reason() {
        insta::assert_snapshot!(
            [
                shaped(Engine::Fsdp2, &[Shape::Bypass]),
                shaped(Engine::Fsdp2, &[Shape::LateNoSync]),
                shaped(Engine::Ddp, &[Shape::LateNoSync]),
                shaped(Engine::Ddp, &[Shape::Experts]),
                SpecRequest { stage: Some(3), ..shaped(Engine::DeepSpeed, &[Shape::Experts]) },
                SpecRequest { world_size: Some(1), ..shaped(Engine::DeepSpeed, &[Shape::Experts]) },
                shaped(Engine::Ddp, &[Shape::TupleOutput, Shape::DictOutput]),
                shaped(Engine::Ddp, &[Shape::UnusedAlways, Shape::InfinityOnOneRank]),
                SpecRequest { model: Some(Model::Mlp), ..shaped(Engine::Ddp, &[Shape::Tied]) },
            ]
            .map(refusal)
            .join("\n")
        );
        assert!(shaped(Engine::Ddp, &[Shape::Bypass]).resolve().is_ok());
    }

    #[test]
    fn a_static_graph_is_refused_where_ddp_cannot_learn_it() {
        let request = |ga, shapes: &[Shape]| SpecRequest {
            static_graph: Some(true),
            gradient_accumulation_steps: Some(ga),
            ..shaped(Engine::Ddp, shapes)
        };
        assert!(request(1, &[Shape::UnusedAlways]).resolve().is_ok());
        insta::assert_snapshot!(
            [
                request(2, &[]),
                request(1, &[Shape::SeveralBackwards]),
                request(1, &[Shape::UnusedAlternating]),
                SpecRequest { bucket_cap_mb: Some(0.0), ..shaped(Engine::Ddp, &[]) },
            ]
            .map(refusal)
            .join("\n")
        );
    }

    #[test]
    fn dtypes_that_follow_from_others_cannot_be_asked_for() {
        let fp32 = Some(Dtype::Fp32);
        insta::assert_snapshot!(
            [
                SpecRequest { comm_dtype: fp32, ..shaped(Engine::Ddp, &[]) },
                SpecRequest { grad_accum_dtype: fp32, ..shaped(Engine::Ddp, &[]) },
                SpecRequest { grad_accum_dtype: fp32, ..shaped(Engine::Fsdp2, &[]) },
            ]
            .map(refusal)
            .join("\n")
        );
    }
}
