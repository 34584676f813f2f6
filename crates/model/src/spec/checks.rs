//! Checks for settings and shapes that an engine cannot have.

use super::{
    Dataflow, Dtype, Engine, Invalid, Model, Offload, RunSpec, SequenceGroups, Shape, SpecRequest,
};

/// Bytes in a MiB.
pub(super) const MIB: f64 = 1_048_576.0;

impl SpecRequest {
    /// Refuses settings that contradict the accumulator dataflow.
    pub(super) fn check_native(&self, spec: &RunSpec) -> Vec<Invalid> {
        if spec.dataflow() != Some(Dataflow::Accumulator) {
            return Vec::new();
        }
        let no_buckets = "the accumulator dataflow has no buckets; use --dataflow ipg-bucket";
        let rows = [
            (spec.stage >= 2, "--dataflow accumulator", "it belongs to stages 0 and 1"),
            (
                spec.offload == Offload::Cpu,
                "--dataflow accumulator --offload cpu",
                "gradients are offloaded from buckets; use --dataflow ipg-bucket",
            ),
            (self.overlap_comm.is_some(), "--overlap-comm", no_buckets),
            (self.contiguous_gradients.is_some(), "--contiguous-gradients", no_buckets),
            (self.reduce_scatter.is_some(), "--reduce-scatter", no_buckets),
            (self.reduce_bucket_size.is_some(), "--reduce-bucket-size", no_buckets),
        ];
        let unfit = rows.into_iter().filter(|(unfit, _, _)| *unfit);
        unfit.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
    }
}

impl Dataflow {
    /// The dataflow that DeepSpeed takes (`DeepSpeedEngine._do_optimizer_sanity_check` in
    /// `runtime/engine.py`); stage 0 is treated as stage 1.
    pub(super) fn of_deepspeed(
        stage: u8,
        dtype: Dtype,
        accum: Dtype,
        offload: Option<Offload>,
    ) -> Self {
        let accumulates = stage < 2 && dtype == Dtype::Bf16 && accum == Dtype::Fp32;
        if accumulates && offload != Some(Offload::Cpu) {
            Self::Accumulator
        } else {
            Self::IpgBucket
        }
    }
}

/// Refuses to add gradients up in a dtype that cannot hold them.
pub(super) fn check_accumulation(
    engine: Engine,
    model: Dtype,
    accum: Dtype,
) -> Result<(), Invalid> {
    let holds = (engine.traits().can_accumulate)(model, accum);
    if holds { Ok(()) } else { Err(Invalid::NarrowAccumulation { accum, model }) }
}

/// Refuses shapes that the engine cannot have.
pub(super) fn check_shapes(spec: &RunSpec) -> Vec<Invalid> {
    let reason = |shape: Shape| match shape.only_on() {
        Some((engine, reason)) if engine != spec.engine() => Some(reason),
        _ => (spec.engine().traits().leaves_no_room)(spec, shape),
    };
    let refused =
        |shape: &Shape| Some(Invalid::contradiction(format!("--shape {shape}"), reason(*shape)?));
    spec.shapes.iter().filter_map(refused).collect()
}

/// Refuses settings of DeepSpeed that its optimizer does not take.
pub(super) fn check_deepspeed(spec: &RunSpec) -> Vec<Invalid> {
    if spec.parameter_groups == Some(2) && spec.has_shape(Shape::Experts) {
        return vec![Invalid::contradiction(
            "--parameter-groups 2 with --shape experts",
            "the experts are a parameter group of their own already; drop one of the two",
        )];
    }
    let mut problems = check_sequences(spec);
    let zenflow =
        spec.deepspeed_config().and_then(|config| config.pointer("/zero_optimization/zenflow"));
    if zenflow.is_some_and(|section| !section.is_null()) {
        problems.push(Invalid::contradiction(
            "zero_optimization.zenflow",
            "ZenFlow steps with the largest columns of a gradient at once and with the others later, by two \
             Adams of its own, so that no step has one gradient; remove the section to check the rest",
        ));
    }
    let Some(scale) = spec.override_loss_scale() else { return problems };
    let offload = Some(spec.offload);
    let dataflow = Dataflow::of_deepspeed(spec.stage, spec.dtype, spec.grad_accum_dtype, offload);
    if spec.stage == 0 || dataflow == Dataflow::Accumulator {
        problems.push(Invalid::contradiction(
            format!("--override-loss-scale {scale}"),
            "DeepSpeed's optimizers of these settings take none; use --stage 2 or 3, or --stage 1 with \
             --grad-accum-dtype bf16",
        ));
    }
    problems
}

/// Refuses groups of ranks for sequence parallelism that DeepSpeed or the codes cannot have.
fn check_sequences(spec: &RunSpec) -> Vec<Invalid> {
    let Some(deepspeed) = spec.deepspeed() else { return Vec::new() };
    let (ranks, groups) = (deepspeed.sequence_parallel, deepspeed.sequence_groups);
    let rows = [
        (
            !spec.world_size.is_multiple_of(ranks),
            format!("--sequence-parallel {ranks} with {} ranks", spec.world_size),
            "each sequence is cut for equally many ranks; use a number that divides --nproc-per-node",
        ),
        (
            !ranks.is_power_of_two(),
            format!("--sequence-parallel {ranks}"),
            "codes stay exact only if it is a power of two",
        ),
        (
            ranks == 1 && groups != SequenceGroups::Mpu,
            format!("--sequence-groups {groups}"),
            "a single rank has the whole of a sequence; add --sequence-parallel 2",
        ),
        (
            ranks > 1 && spec.has_shape(Shape::Experts),
            "--sequence-parallel with --shape experts".to_owned(),
            "the experts' group is all ranks; drop one of the two",
        ),
        (
            ranks > 1 && spec.model == Model::Mlp,
            "--sequence-parallel with --model mlp".to_owned(),
            "the coded loss alone makes up for the factor of DeepSpeed's average; drop one of the two",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}
