//! Checks for settings and shapes that an engine does not support.

use serde_json::Value;

use super::{
    Dataflow, Dtype, Engine, Invalid, Model, Offload, Optimizer, RunSpec, SequenceGroups, Shape,
    SpecRequest, settings,
};

/// The number of bytes in a MiB.
pub(super) const MIB: f64 = 1_048_576.0;

impl SpecRequest {
    /// Refuses settings that contradict the accumulator dataflow.
    pub(super) fn check_native(&self, spec: &RunSpec) -> Vec<Invalid> {
        if spec.dataflow() != Some(Dataflow::Accumulator) {
            return Vec::new();
        }
        let no_buckets = "the accumulator dataflow has no buckets; use --dataflow ipg-bucket";
        let rows = [
            (
                spec.stage >= 2,
                "--dataflow accumulator",
                "the accumulator dataflow exists only in stages 0 and 1",
            ),
            (
                spec.offload == Offload::Cpu,
                "--dataflow accumulator --offload cpu",
                "only gradients in buckets can be offloaded; use --dataflow ipg-bucket",
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
    /// The dataflow that DeepSpeed chooses (`DeepSpeedEngine._do_optimizer_sanity_check` in `runtime/engine.py`);
    /// stage 0 is treated as stage 1.
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

/// Refuses to accumulate gradients in a dtype that cannot hold them.
pub(super) fn check_accumulation(
    engine: Engine,
    model: Dtype,
    accum: Dtype,
) -> Result<(), Invalid> {
    let holds = (engine.traits().can_accumulate)(model, accum);
    if holds { Ok(()) } else { Err(Invalid::NarrowAccumulation { accum, model }) }
}

/// Refuses shapes that the engine does not support.
pub(super) fn check_shapes(spec: &RunSpec) -> Vec<Invalid> {
    let reason = |shape: Shape| match shape.only_on() {
        Some((engine, reason)) if engine != spec.engine() => Some(reason),
        _ => (spec.engine().traits().leaves_no_room)(spec, shape),
    };
    let refused =
        |shape: &Shape| Some(Invalid::contradiction(format!("--shape {shape}"), reason(*shape)?));
    spec.shapes.iter().filter_map(refused).collect()
}

/// Refuses settings that DeepSpeed's optimizers do not support.
pub(super) fn check_deepspeed(spec: &RunSpec) -> Vec<Invalid> {
    if spec.parameter_groups == Some(2) && spec.has_shape(Shape::Experts) {
        return vec![Invalid::contradiction(
            "--parameter-groups 2 with --shape experts",
            "the experts already have a parameter group of their own; drop one of the two flags",
        )];
    }
    let mut problems = check_sequences(spec);
    problems.extend(check_muon(spec));
    problems.extend(check_features(spec));
    let Some(scale) = spec.override_loss_scale() else { return problems };
    let offload = Some(spec.offload);
    let dataflow = Dataflow::of_deepspeed(spec.stage, spec.dtype, spec.grad_accum_dtype, offload);
    if spec.stage == 0 || dataflow == Dataflow::Accumulator {
        problems.push(Invalid::contradiction(
            format!("--override-loss-scale {scale}"),
            "with these settings, DeepSpeed's optimizer takes no other loss scale; use --stage 2 or 3, \
             or --stage 1 with --grad-accum-dtype bf16",
        ));
    }
    problems
}

/// The features of DeepSpeed that zprobe's script does not exercise, by the path of their key, with the reasons.
const NOT_EXERCISED: &[(&str, &str)] = &[
    (
        "zero_optimization.zenflow",
        "ZenFlow applies the largest columns of a gradient at once and the others later, with two Adam optimizers of \
         its own, so a step has no single gradient; remove the section to check the other settings",
    ),
    (
        "zero_optimization.offload_optimizer.super_offload",
        "SuperOffload updates partitions in a process of its own, which zprobe does not watch, and needs CUDA; remove \
         the key to check the other settings",
    ),
    (
        "compile.deepcompile",
        "DeepCompile needs CUDA, and a call of engine.compile() that zprobe's script does not make; remove the key to \
         check the other settings",
    ),
    (
        "tensor_parallel.autotp_size",
        "zprobe's models have no layers that AutoTP cuts; remove the key to check the other settings",
    ),
];

/// Refuses features that zprobe's script does not exercise.
fn check_features(spec: &RunSpec) -> Vec<Invalid> {
    let is_on = |path: &str| {
        let value = settings::configured(spec, path);
        let is_off =
            |it: &Value| it.is_null() || *it == false || it.as_u64().is_some_and(|ranks| ranks < 2);
        value.is_some_and(|it| !is_off(it))
    };
    let asked = NOT_EXERCISED.iter().filter(|(path, _)| is_on(path));
    asked.map(|&(path, reason)| Invalid::contradiction(path, reason)).collect()
}

/// Refuses Muon where the engine does not have it.
fn check_muon(spec: &RunSpec) -> Option<Invalid> {
    if spec.optimizer != Optimizer::Muon {
        return None;
    }
    let Some(config) = spec.deepspeed_config() else {
        let reason =
            "zprobe runs Muon only under DeepSpeed; use --engine deepspeed, or another optimizer";
        return Some(Invalid::contradiction("--optimizer muon", reason));
    };
    let scatters = config.pointer("/zero_optimization/reduce_scatter") != Some(&false.into());
    (spec.stage == 3 && scatters).then(|| {
        let reason = "DeepSpeed refuses Muon in stage 3 unless reduce-scatter is off; use --reduce-scatter false";
        Invalid::contradiction("--optimizer muon --stage 3", reason)
    })
}

/// Refuses groups of ranks for sequence parallelism that DeepSpeed or the codes do not support.
fn check_sequences(spec: &RunSpec) -> Vec<Invalid> {
    let Some(deepspeed) = spec.deepspeed() else { return Vec::new() };
    let (ranks, groups) = (deepspeed.sequence_parallel, deepspeed.sequence_groups);
    let rows = [
        (
            !spec.world_size.is_multiple_of(ranks),
            format!("--sequence-parallel {ranks} with {} ranks", spec.world_size),
            "each sequence is cut for the same number of ranks; use a number that divides --nproc-per-node",
        ),
        (
            !ranks.is_power_of_two(),
            format!("--sequence-parallel {ranks}"),
            "codes stay exact only if this number is a power of two",
        ),
        (
            ranks == 1 && groups != SequenceGroups::Mpu,
            format!("--sequence-groups {groups}"),
            "a single rank holds whole sequences; add --sequence-parallel 2",
        ),
        (
            ranks > 1 && spec.has_shape(Shape::Experts),
            "--sequence-parallel with --shape experts".to_owned(),
            "the group of the experts contains all ranks; drop one of the two flags",
        ),
        (
            ranks > 1 && spec.model == Model::Mlp,
            "--sequence-parallel with --model mlp".to_owned(),
            "only the coded loss makes up for the factor in DeepSpeed's average; drop one of the two flags",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}
