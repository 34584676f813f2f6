//! Checks that a complete specification can be run.

use super::Dtype;
use super::exactness::sums_stay_within;
use super::{
    Invalid, LossScale, Model, NormType, Optimizer, OverlappedOptimizer, RunSpec, Shape,
    SpecRequest, settings,
};

impl RunSpec {
    /// Refuses values that no engine supports, for example counts so large that arithmetic with them could overflow.
    ///
    /// # Errors
    /// Fails with the first value that is out of range.
    pub fn check_values(&self) -> Result<(), Invalid> {
        settings::ALL.iter().try_for_each(|setting| setting.check(self))
    }
}

/// Refuses dtypes that cannot hold the partial sums of codes, which are integers of at most `W·GA`, unless all sums
/// of this run stay small enough.
///
/// If the sum over the ranks is divided last, multiples of `W` are communicated, of which only the odd part of `W`
/// takes up significant bits.
///
/// The communication dtype may follow from the accumulation dtype; then it is not refused a second time.
pub(super) fn check_exactness(spec: &RunSpec, asked: &SpecRequest) -> Vec<Invalid> {
    let mut problems = Vec::new();
    if spec.model != Model::Coded {
        return problems;
    }
    let contributions = spec.contributions_per_step();
    let odd_part = spec.world_size >> spec.world_size.trailing_zeros();
    let undivided = if spec.divides_last() { odd_part } else { 1 };
    // A schedule that divides at the end of a step accumulates gradients that are larger by the divisor.
    let divided_at_end = spec.pipeline().filter(|pipeline| pipeline.scale_grads).map_or(1, |_| {
        let ga = spec.gradient_accumulation_steps;
        odd_part * (ga >> ga.trailing_zeros())
    });
    for (flag, dtype, multiple) in [
        ("--grad-accum-dtype", spec.grad_accum_dtype, divided_at_end),
        ("--comm-dtype", spec.narrowest_comm_dtype(), undivided),
    ] {
        let limit = dtype.exact_integers() / multiple;
        let follows = !problems.is_empty() && asked.comm_dtype.is_none();
        if contributions > limit && !follows && !sums_stay_within(spec, limit) {
            problems.push(Invalid::Inexact {
                world_size: spec.world_size,
                ga: spec.gradient_accumulation_steps,
                contributions,
                dtype,
                limit,
                flag,
            });
        }
    }
    problems.extend(check_range(spec).err());
    problems
}

/// Refuses an optimizer that divides by 0 in the dtype of its parameters.
pub(super) fn check_optimizer(spec: &RunSpec) -> Option<Invalid> {
    let is_fp16 = spec.dtype == Dtype::Fp16 && !spec.engine().traits().has_master_weights;
    (is_fp16 && matches!(spec.optimizer, Optimizer::Adamw { .. })).then(|| {
        Invalid::contradiction(
            format!("--optimizer adamw with --engine {} and --dtype fp16", spec.engine()),
            "Adam's epsilon (1e-8) is 0 in fp16, so that Adam divides 0 by 0 where a gradient is 0; use --dtype bf16 \
             or --optimizer sgd",
        )
    })
}

/// Refuses a kind of norm for a gradient that is not clipped.
pub(super) fn check_norm_type(spec: &RunSpec) -> Option<Invalid> {
    (spec.norm_type != NormType::Two && spec.gradient_clipping == 0.0).then(|| {
        Invalid::contradiction(
            format!("--norm-type {}", spec.norm_type),
            "no gradient is clipped; add --gradient-clipping 0.1",
        )
    })
}

/// Refuses loss scales that torch's `GradScaler` does not support.
pub(super) fn check_grad_scaler(spec: &RunSpec) -> Option<Invalid> {
    if spec.engine().traits().scales_loss {
        return None;
    }
    match spec.loss_scale {
        LossScale::Static { scale: 1.0 } => None,
        LossScale::Static { scale } => Some(Invalid::contradiction(
            format!("--loss-scale {scale} with --engine {}", spec.engine()),
            "torch's GradScaler has no fixed scale; use --loss-scale dynamic",
        )),
        LossScale::Dynamic { .. }
            if spec
                .ddp()
                .is_some_and(|it| it.overlapped_optimizer != OverlappedOptimizer::None) =>
        {
            Some(Invalid::contradiction(
                "--loss-scale dynamic with --overlapped-optimizer",
                "GradScaler unscales after backward, and this optimizer steps during backward; drop one of the two flags",
            ))
        }
        LossScale::Dynamic { .. } => {
            let has_narrow_gradients =
                !spec.engine().traits().has_master_weights && spec.dtype == Dtype::Fp16;
            has_narrow_gradients.then(|| {
                Invalid::contradiction(
                    format!(
                        "--loss-scale dynamic with --engine {} and --dtype fp16",
                        spec.engine()
                    ),
                    "torch's GradScaler does not unscale fp16 gradients; use --dtype fp32",
                )
            })
        }
    }
}

/// Refuses a loss scale with which the sums of codes are not exact or exceed the range of fp16.
///
/// Only the native engine is checked. A real engine skips steps until its scale is low enough.
fn check_range(spec: &RunSpec) -> Result<(), Invalid> {
    let scale = spec.loss_scale.initial();
    let undivided = spec.divides_last() && spec.narrowest_comm_dtype() == Dtype::Fp16;
    let multiple = if undivided { spec.world_size } else { 1 };
    let largest = (spec.contributions_per_step() * multiple) as f64 * scale;
    let scales = spec.engine().traits().follows_spec && spec.dtype == Dtype::Fp16;
    if scales && scale.log2().fract() != 0.0 {
        return Err(Invalid::contradiction(
            format!("--loss-scale {scale}"),
            "codes stay exact only with powers of two; use a power of two",
        ));
    }
    if scales && largest > Dtype::Fp16.largest() {
        return Err(Invalid::Overflow { scale, largest });
    }
    Ok(())
}

/// Refuses a checkpoint that no step follows, and shapes that checkpoints do not support.
pub(super) fn check_resumption(spec: &RunSpec) -> Vec<Invalid> {
    let Some(step) = spec.resume_before else { return Vec::new() };
    let rows = [
        (
            step >= spec.steps,
            format!("--resume-before {step} with {} steps", spec.steps),
            "steps count from 0, and at least one step has to follow the checkpoint; use more --steps",
        ),
        (
            spec.has_shape(Shape::Experts),
            format!("--resume-before {step} with --shape experts"),
            "DeepSpeed saves only experts in its own MoE layers; drop one of the two flags",
        ),
        (
            spec.optimizer == Optimizer::Muon,
            format!("--resume-before {step} with --optimizer muon"),
            "zprobe does not compare the state of Muon; drop one of the two flags",
        ),
        (
            spec.ddp().is_some_and(|ddp| ddp.overlapped_optimizer != OverlappedOptimizer::None),
            format!("--resume-before {step} with --overlapped-optimizer"),
            "an optimizer that steps during backward has no state dict; drop one of the two flags",
        ),
        (
            spec.ddp().is_some() && spec.model_parallel() > 1,
            format!("--resume-before {step} with --tensor-parallel"),
            "the checkpoint of DDP is that of rank 0, and other ranks hold other parts; drop one of the two flags",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}

/// Refuses shapes with a model other than the coded one, and shapes that contradict each other.
pub(super) fn check_shapes(spec: &RunSpec) -> Vec<Invalid> {
    let mut problems = Vec::new();
    for &first in &spec.shapes {
        if spec.model == Model::Mlp {
            problems.push(Invalid::ShapeWithoutCodes { shape: first, model: spec.model });
        }
        for &second in &spec.shapes {
            let reason = first.excludes(second);
            problems.extend(reason.map(|reason| Invalid::ShapesContradict {
                first,
                second,
                reason,
            }));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Dataflow, Engine, Fault, Offload, ShardingStrategy};

    #[test]
    fn a_wire_that_carries_sums_not_yet_divided_holds_fewer_contributions() {
        let request = |dataflow, ga| SpecRequest {
            world_size: Some(7),
            gradient_accumulation_steps: Some(ga),
            comm_dtype: Some(Dtype::Bf16),
            dataflow: Some(dataflow),
            ..SpecRequest::default()
        };
        // 7·7·5 = 245 is exact in bf16; 7·7·36 is not, and the sums of that run do not stay small enough either.
        assert!(request(Dataflow::Accumulator, 5).resolve().is_ok());
        assert!(request(Dataflow::Accumulator, 36).resolve().is_err());
        assert!(request(Dataflow::IpgBucket, 36).resolve().is_ok());
    }

    #[test]
    fn a_bucket_that_is_all_reduced_undivided_holds_fewer_contributions_in_both_engines() {
        let request = |engine, reduce_scatter| SpecRequest {
            engine: Some(engine),
            stage: Some(2),
            world_size: Some(7),
            gradient_accumulation_steps: Some(36),
            reduce_scatter: Some(reduce_scatter),
            ..SpecRequest::default()
        };
        for engine in [Engine::Native, Engine::DeepSpeed] {
            assert!(request(engine, true).resolve().is_ok(), "{engine}");
            let refusal = request(engine, false).resolve().expect_err("it is inexact");
            assert!(matches!(refusal.problems(), [Invalid::Inexact { .. }]), "{engine}");
            // Without reduce-scatter, stage 3 still divides first.
            let stage_3 = SpecRequest { stage: Some(3), ..request(engine, false) };
            assert!(stage_3.resolve().is_ok(), "{engine}");
        }
        let bf16_optimizer = SpecRequest { stage: Some(1), ..request(Engine::DeepSpeed, true) };
        assert!(bf16_optimizer.resolve().is_err());
    }

    #[test]
    fn an_undivided_sum_leaves_the_range_of_fp16_sooner() {
        let request = |reduce_scatter| SpecRequest {
            stage: Some(2),
            world_size: Some(8),
            gradient_accumulation_steps: Some(16),
            dtype: Some(Dtype::Fp16),
            reduce_scatter: Some(reduce_scatter),
            ..SpecRequest::default()
        };
        assert!(request(true).resolve().is_ok());
        let refusal = Invalid::Overflow { scale: 64.0, largest: 65536.0 };
        assert_eq!(request(false).resolve(), Err(refusal.into()));
    }

    #[test]
    fn counts_that_would_overflow_are_refused_by_name() {
        let request = SpecRequest { steps: Some(usize::MAX), ..SpecRequest::default() };
        let limit = 1 << 16;
        let refusal = Invalid::TooLarge { flag: "--steps", value: usize::MAX, limit };
        assert_eq!(request.resolve(), Err(refusal.into()));
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
        let mut untied = shaped(Engine::Fsdp2, &[Shape::Tied]);
        untied.assign_state_dict = Some(true);
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
                untied,
            ]
            .map(refusal)
            .join("\n")
        );
        assert!(shaped(Engine::Ddp, &[Shape::Bypass]).resolve().is_ok());
    }

    #[test]
    fn settings_of_fsdp1_that_contradict_each_other_are_refused() {
        let fsdp1 = |shapes: &[Shape]| shaped(Engine::Fsdp1, shapes);
        let replicas = |replicas| SpecRequest { replicas: Some(replicas), ..fsdp1(&[]) };
        let strategy = Some(ShardingStrategy::HybridShard);
        let low_precision = SpecRequest {
            keep_low_precision_grads: Some(true),
            optimizer: Some(Optimizer::ADAMW),
            ..fsdp1(&[])
        };
        insta::assert_snapshot!(
            [
                replicas(2),
                SpecRequest { sharding_strategy: strategy, ..replicas(3) },
                SpecRequest { parameter_groups: Some(2), ..fsdp1(&[]) },
                fsdp1(&[Shape::Frozen]),
                fsdp1(&[Shape::DifferentStart]),
                SpecRequest { dtype: Some(Dtype::Bf16), ..low_precision.clone() },
            ]
            .map(refusal)
            .join("\n")
        );
        assert!(SpecRequest { sharding_strategy: strategy, ..replicas(2) }.resolve().is_ok());
        assert!(SpecRequest { dtype: Some(Dtype::Fp32), ..low_precision }.resolve().is_ok());
        let own = SpecRequest { use_orig_params: Some(true), ..fsdp1(&[Shape::Frozen]) };
        assert!(SpecRequest { parameter_groups: Some(2), ..own }.resolve().is_ok());
    }

    #[test]
    fn fp16_parameters_are_refused_with_adam_and_with_a_grad_scaler_on_every_model() {
        for model in [Model::Coded, Model::Mlp] {
            let request = |engine, dtype| SpecRequest {
                model: Some(model),
                dtype: Some(dtype),
                ..shaped(engine, &[])
            };
            let adam = |request| SpecRequest { optimizer: Some(Optimizer::ADAMW), ..request };
            let scaled = |request| SpecRequest { loss_scale: Some(LossScale::DEFAULT), ..request };
            let fp16 = |engine| request(engine, Dtype::Fp16);
            assert!(refusal(adam(fp16(Engine::Ddp))).contains("divides 0 by 0"));
            assert!(refusal(scaled(fp16(Engine::Ddp))).contains("does not unscale fp16"));
            // The masters of FSDP2 are fp32.
            assert_eq!(refusal(adam(fp16(Engine::Fsdp2))), "it runs");
            assert_eq!(refusal(scaled(fp16(Engine::Fsdp2))), "it runs");
            assert_eq!(refusal(adam(request(Engine::Ddp, Dtype::Bf16))), "it runs");
        }
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
    fn faults_that_no_backward_or_step_is_left_for_are_refused() {
        let once = |fault| SpecRequest {
            inject: Some(fault),
            steps: Some(1),
            gradient_accumulation_steps: Some(1),
            ..SpecRequest::default()
        };
        let offload = SpecRequest { offload: Some(Offload::Cpu), ..once(Fault::StaleHostBuffer) };
        let stage_0 = SpecRequest { stage: Some(0), ..once(Fault::PaddingNotZeroed) };
        insta::assert_snapshot!(
            [
                once(Fault::RankDies),
                once(Fault::RankHangs),
                once(Fault::RankRubbish),
                once(Fault::MicrobatchFromPreviousStep),
                once(Fault::AccumulatorNotZeroed),
                offload.clone(),
                stage_0,
            ]
            .map(refusal)
            .join("\n")
        );
        for (fault, shape) in
            [(Fault::RankDies, Shape::SeveralBackwards), (Fault::RankHangs, Shape::PenaltyBackward)]
        {
            let request = SpecRequest { shapes: vec![shape], ..once(fault) };
            assert!(request.resolve().is_ok(), "{shape}");
        }
        assert!(SpecRequest { steps: Some(2), ..offload }.resolve().is_ok());
    }

    #[test]
    fn a_checkpoint_is_refused_where_no_step_follows_or_nothing_saves_it() {
        let request = |engine, step, shapes: &[Shape]| SpecRequest {
            resume_before: Some(step),
            ..shaped(engine, shapes)
        };
        assert!(request(Engine::Ddp, 1, &[]).resolve().is_ok());
        insta::assert_snapshot!(
            [
                request(Engine::Ddp, 2, &[]),
                request(Engine::Ddp, 0, &[]),
                request(Engine::DeepSpeed, 1, &[Shape::Experts]),
                request(Engine::Native, 1, &[]),
            ]
            .map(refusal)
            .join("\n")
        );
    }

    #[test]
    fn a_bucket_size_is_refused_where_there_are_no_buckets() {
        let request = SpecRequest {
            dataflow: Some(Dataflow::Accumulator),
            reduce_bucket_size: Some(64),
            ..SpecRequest::default()
        };
        insta::assert_snapshot!(refusal(request));
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
