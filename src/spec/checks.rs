//! Checks for settings and shapes that an engine cannot have.

use super::{
    CommHook, Dataflow, DdpOptions, DelayedParameters, Dtype, Engine, Invalid, Model, Offload,
    RunSpec, SequenceGroups, Shape, SpecRequest,
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

/// Refuses settings of DDP that contradict the accumulation or the shapes of the run.
pub(super) fn check_ddp(spec: &RunSpec) -> Vec<Invalid> {
    let Some(ddp) = spec.ddp() else { return Vec::new() };
    let mut problems = match ddp.delayed_parameters {
        DelayedParameters::None => Vec::new(),
        DelayedParameters::Unawaited | DelayedParameters::Awaited => check_delayed(spec, ddp),
    };
    if !ddp.static_graph {
        return problems;
    }
    if spec.gradient_accumulation_steps > 1 || spec.has_shape(Shape::SeveralBackwards) {
        // `expect_autograd_hooks_ INTERNAL ASSERT FAILED` in reducer.cpp, seen with torch 2.11 and
        // 2.15: the first backward enqueues a reduction though its forward did not prepare for one.
        problems.push(Invalid::contradiction(
            "--static-graph with gradient accumulation",
            "DDP learns the graph in the first backward and reduces then, so that it fails under \
             no_sync; use --ga 1",
        ));
    }
    if spec.has_shape(Shape::UnusedAlternating) {
        problems.push(Invalid::contradiction(
            "--static-graph with --shape unused-alternating",
            "the graph is not the same in every step, which is what --static-graph promises; drop \
             one of the two",
        ));
    }
    problems
}

/// Refuses what DDP's delayed parameters cannot have: their gradients lie in an fp32 buffer, which is reduced in
/// each backward, in `no_sync` too, as soon as one parameter has its gradient (`_delayed_all_reduce_hook` in
/// `nn/parallel/distributed.py`).
fn check_delayed(spec: &RunSpec, ddp: DdpOptions) -> Vec<Invalid> {
    let several = spec.gradient_accumulation_steps > 1;
    let rows = [
        (spec.dtype != Dtype::Fp32, "--dtype", "their gradients are fp32; use --dtype fp32"),
        (
            ddp.bucket_cap_mb.fract() != 0.0,
            "--bucket-cap-mb",
            "DDP takes whole numbers alone there; use --bucket-cap-mb 1",
        ),
        (several, "--ga", "they are reduced in every microbatch; use --ga 1"),
        (
            ddp.comm_hook != CommHook::None,
            "--comm-hook",
            "they are not reduced by the hook; use --comm-hook none",
        ),
    ];
    let settings = rows.into_iter().filter(|(refused, _, _)| *refused);
    let settings = settings.map(|(_, flag, reason)| (flag.to_owned(), reason));
    let shapes = spec.shapes.iter().filter(|shape| !shape.allows_delayed_parameters());
    let shapes = shapes.map(|shape| {
        let reason =
            "they are reduced once in a backward, when the first parameter has its gradient";
        (format!("--shape {shape}"), reason)
    });
    let refused = settings.chain(shapes);
    let flag = format!("--delayed-parameters {}", ddp.delayed_parameters);
    let asked = |(other, reason)| Invalid::contradiction(format!("{flag} with {other}"), reason);
    refused.map(asked).collect()
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

/// Refuses settings of FSDP2 that contradict each other, or that CPU ranks cannot have.
pub(super) fn check_fsdp2(spec: &RunSpec) -> Vec<Invalid> {
    let Some(fsdp2) = spec.fsdp2() else { return Vec::new() };
    let replicas = fsdp2.replicas;
    let at_boundary = fsdp2.all_reduce_at_boundary;
    let parts = fsdp2.tensor_parallel;
    let over_average = fsdp2.gradient_divide_factor.map(|divisor| divisor / spec.world_size as f64);
    let divisor =
        || format!("--gradient-divide-factor {}", fsdp2.gradient_divide_factor.unwrap_or_default());
    let rows = [
        (
            replicas > 1 && !spec.world_size.is_multiple_of(replicas),
            format!("--replicas {replicas} with {} ranks", spec.world_size),
            "each replica has equally many ranks; use a number that divides --nproc-per-node",
        ),
        (
            parts > 1
                && spec.world_size.is_multiple_of(replicas)
                && !spec.world_size.is_multiple_of(replicas * parts),
            format!(
                "--tensor-parallel {parts} with {} ranks and --replicas {replicas}",
                spec.world_size
            ),
            "each part of a replica is on equally many ranks; use a number of ranks that is a multiple of both \
             multiplied",
        ),
        (
            !parts.is_power_of_two(),
            format!("--tensor-parallel {parts}"),
            "codes stay exact only if it is a power of two",
        ),
        (
            parts > 1 && spec.model == Model::Mlp,
            "--tensor-parallel with --model mlp".to_owned(),
            "only the coded model is cut; drop one of the two",
        ),
        (
            at_boundary && replicas == 1,
            "--all-reduce-at-boundary".to_owned(),
            "a single replica has no others to be summed with; add --replicas 2",
        ),
        (
            fsdp2.all_reduce_hook && replicas == 1,
            "--all-reduce-hook".to_owned(),
            "a single replica has no others to be averaged with; add --replicas 2",
        ),
        (
            fsdp2.all_reduce_hook && (at_boundary || over_average.is_some()),
            "--all-reduce-hook with --all-reduce-at-boundary or --gradient-divide-factor"
                .to_owned(),
            "fully_shard does not sum over these replicas; drop one of the two",
        ),
        (
            at_boundary && !fsdp2.reduce_every_microbatch,
            "--all-reduce-at-boundary".to_owned(),
            "nothing is reduced before the boundary; add --reduce-every-microbatch true",
        ),
        (
            over_average.is_some_and(|ratio| !(ratio > 0.0 && ratio.log2().fract() == 0.0)),
            divisor(),
            "codes stay exact only if it is the number of ranks times a power of two",
        ),
        (
            over_average.is_some() && !fsdp2.force_sum_reduction && replicas < spec.world_size,
            divisor(),
            "Gloo cannot multiply before it sums, as FSDP2 asks of NCCL; add --force-sum-reduction true",
        ),
        (
            fsdp2.assign_state_dict && spec.has_shape(Shape::Tied),
            "--assign-state-dict with --shape tied".to_owned(),
            "load_state_dict(assign=True) makes a parameter for each name and so unties them; drop one of \
             the two",
        ),
    ];
    let refused = rows.into_iter().filter(|(refused, _, _)| *refused);
    refused.map(|(_, asked, reason)| Invalid::contradiction(asked, reason)).collect()
}
