//! Whether a complete specification can be run.

use super::Dtype;
use super::exactness::sums_stay_within;
use super::{Dataflow, Engine, Fault, Invalid, Model, Offload, RunSpec, Shape};

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
            ("--parameter-groups", self.parameter_groups.unwrap_or(1), 2),
            ("--allgather-bucket-size", self.allgather_bucket_size.unwrap_or(1), usize::MAX),
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

/// Refuses norms that nothing can be clipped to.
pub(super) fn check_numbers(spec: &RunSpec) -> Result<(), Invalid> {
    let norm = spec.gradient_clipping;
    if norm.is_finite() && norm >= 0.0 {
        return Ok(());
    }
    Err(Invalid::contradiction(
        format!("--gradient-clipping {norm}"),
        "a norm is a positive number; 0 does not clip",
    ))
}

/// Every partial sum of codes is an integer of at most `W·GA`; refuse dtypes that cannot hold it, unless
/// the sums of this run all stay smaller.
///
/// The accumulator dataflow and FSDP2 sum over the ranks before they divide by `W`, or by what of it
/// is no power of two, so that on their wire are multiples of `W`, for which only the odd part of `W`
/// takes up significant bits.
pub(super) fn check_exactness(spec: &RunSpec) -> Result<(), Invalid> {
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
        if contributions > limit && !sums_stay_within(spec, limit) {
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
    check_range(spec)
}

/// The sums of codes, times the loss scale, stay in the range of fp16.
///
/// A real engine skips steps until its scale is low enough; the native one is not started.
fn check_range(spec: &RunSpec) -> Result<(), Invalid> {
    let scale = spec.loss_scale.initial();
    let largest = spec.contributions_per_step() as f64 * scale;
    let scales = spec.engine == Engine::Native && spec.dtype == Dtype::Fp16;
    if scales && scale.log2().fract() != 0.0 {
        return Err(Invalid::contradiction(
            format!("--loss-scale {scale}"),
            "codes stay exact under powers of two alone; use one of them",
        ));
    }
    if scales && largest > Dtype::Fp16.largest() {
        return Err(Invalid::Overflow { scale, largest });
    }
    Ok(())
}

/// Shapes are shapes of the coded model, and some contradict each other.
pub(super) fn check_shapes(spec: &RunSpec) -> Result<(), Invalid> {
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

/// Refuses a fault that the run has no place for. One that changes nothing, as most do with a single
/// rank, is let through.
pub(super) fn check_fault(spec: &RunSpec) -> Result<(), Invalid> {
    let Some(fault) = spec.inject else { return Ok(()) };
    let has_buckets = spec.dataflow == Some(Dataflow::IpgBucket);
    let reduces_at_once = spec.stage >= 2;
    let overlaps = spec.overlap_comm == Some(true);
    let has_unused = spec.shapes.iter().any(|shape| shape.leaves_unused());
    let (place, reason) = match fault {
        Fault::DeadHooks
        | Fault::HookFiresTwice
        | Fault::BucketNotAveraged
        | Fault::BucketFlushedEarly
        | Fault::BucketNeverFlushed
        | Fault::StaleParameterList
        | Fault::CollectivesSwapped => (
            has_buckets,
            "the accumulator dataflow has no hooks and no buckets; add --dataflow ipg-bucket",
        ),
        Fault::EmptyBucketFlush => (
            has_buckets && !reduces_at_once,
            "it is about a backward that reduces nothing; use --dataflow ipg-bucket and --stage 1",
        ),
        Fault::BufferOverwritten => (
            overlaps && spec.contiguous_gradients == Some(true),
            "no buffer is filled while another is reduced; add --overlap-comm and leave out \
             --contiguous-gradients false",
        ),
        Fault::WaitMissing => {
            (overlaps, "every reduction is waited for at once; add --overlap-comm")
        }
        Fault::UnusedWaitedFor => (
            has_buckets && has_unused,
            "nothing is waited for; use --dataflow ipg-bucket and --shape unused-last",
        ),
        Fault::TiedReducedTwice => (
            has_buckets && spec.has_shape(Shape::Tied),
            "nothing is used in two places; use --dataflow ipg-bucket and --shape tied",
        ),
        Fault::OffloadCopiedEarly | Fault::StaleHostBuffer => {
            (spec.offload == Offload::Cpu, "nothing is copied to the host; add --offload cpu")
        }
        Fault::OverflowNotAgreed => (
            spec.dtype == Dtype::Fp16 && spec.has_shape(Shape::InfinityOnOneRank),
            "nothing overflows; use --dtype fp16 and --shape infinity-on-one-rank",
        ),
        Fault::LossScaleKept => {
            (spec.dtype == Dtype::Fp16, "only fp16 has a loss scale; use --dtype fp16")
        }
        Fault::ClippedByLocalNorm | Fault::ClippedTwice => {
            (spec.gradient_clipping > 0.0, "nothing is clipped; add --gradient-clipping 1")
        }
        Fault::StaleAllGather => (spec.stage > 0, "stage 0 gathers nothing; use --stage 1"),
        Fault::UpdateNotCopied => (
            matches!(spec.stage, 1 | 2),
            "stage 0 gathers nothing, and stage 3 only what it uses at once; use --stage 1",
        ),
        _ => return Ok(()),
    };
    if place { Ok(()) } else { Err(Invalid::FaultHasNoPlace { fault, reason }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SpecRequest;

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
