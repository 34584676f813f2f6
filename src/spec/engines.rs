//! What each engine has, and what it leaves no room for.

use super::{Dataflow, Dtype, Engine, Invalid, Offload, RunSpec, Shape, SpecRequest};

/// Bytes in a MiB.
pub(super) const MIB: f64 = 1_048_576.0;

impl SpecRequest {
    /// DDP accumulates in the parameters' own gradients, FSDP2 in the dtype that it reduces in.
    pub(super) fn resolve_grad_accum_dtype(&self, engine: Engine, dtype: Dtype) -> Dtype {
        self.grad_accum_dtype.unwrap_or(match engine {
            Engine::Native | Engine::DeepSpeed => Dtype::Fp32,
            Engine::Ddp => dtype,
            Engine::Fsdp2 => self.comm_dtype.unwrap_or(Dtype::Fp32),
        })
    }

    /// The native engine takes the dataflow that DeepSpeed would, unless a setting that was asked for
    /// is about buckets.
    pub(super) fn resolve_dataflow(
        &self,
        engine: Engine,
        stage: u8,
        dtype: Dtype,
        accum: Dtype,
    ) -> Option<Dataflow> {
        let wants_buckets = self.overlap_comm.is_some()
            || self.contiguous_gradients.is_some()
            || self.reduce_scatter.is_some()
            || self.reduce_bucket_size.is_some();
        let chosen = if wants_buckets {
            Dataflow::IpgBucket
        } else {
            Dataflow::of_deepspeed(stage, dtype, accum, self.offload)
        };
        (engine == Engine::Native).then(|| self.dataflow.unwrap_or(chosen))
    }

    /// Refuses what does not go together with the accumulator dataflow.
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
    /// The one that DeepSpeed takes (`DeepSpeedEngine._do_optimizer_sanity_check` in
    /// `runtime/engine.py`); stage 0 follows stage 1.
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

/// Refuses to add gradients up in a dtype that does not hold them.
pub(super) fn check_accumulation(
    engine: Engine,
    model: Dtype,
    accum: Dtype,
) -> Result<(), Invalid> {
    let narrow = match engine {
        Engine::Native => ![model, Dtype::Fp32].contains(&accum),
        // It accumulates in its `reduce_dtype`, whatever that is.
        Engine::Fsdp2 => false,
        Engine::DeepSpeed | Engine::Ddp => accum == Dtype::Bf16 && model == Dtype::Fp32,
    };
    if narrow { Err(Invalid::NarrowAccumulation { accum, model }) } else { Ok(()) }
}

/// Refuses shapes that the engine leaves no room for.
pub(super) fn check_shapes(spec: &RunSpec) -> Vec<Invalid> {
    let has = |shape| spec.has_shape(shape);
    let one_backward = spec.gradient_accumulation_steps == 1 && !has(Shape::SeveralBackwards);
    let native = spec.engine() == Engine::Native;
    let handed_the_loss =
        "the native engine is handed the loss itself; choose another with --engine";
    let rows = [
        (Shape::TupleOutput, native, handed_the_loss),
        (Shape::DictOutput, native, handed_the_loss),
        (
            Shape::Bypass,
            spec.engine() == Engine::Fsdp2,
            "beside the forward, FSDP2's parameters are shards that no loss can use; use --engine ddp",
        ),
        (
            Shape::Bypass,
            spec.engine() == Engine::DeepSpeed && spec.stage == 3,
            "beside the forward, stage 3's parameters are empty; use --stage 2",
        ),
        (
            Shape::PenaltyBackward,
            !native && (spec.engine() != Engine::DeepSpeed || spec.stage == 3),
            "DDP and FSDP2 reduce in what their forward prepares, and stage 3's parameters are \
             empty beside it; use --engine deepspeed with --stage 0, 1 or 2",
        ),
        (Shape::LateNoSync, spec.engine() != Engine::Ddp, "only DDP has no_sync; use --engine ddp"),
        (
            Shape::LateNoSync,
            one_backward,
            "no_sync is for all but the last microbatch of a step; use --ga 2 or more",
        ),
        (
            Shape::Experts,
            spec.engine() != Engine::DeepSpeed,
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
    let problem = |shape: &Shape| {
        let (_, _, reason) = rows.iter().find(|(other, unfit, _)| other == shape && *unfit)?;
        Some(Invalid::contradiction(format!("--shape {shape}"), reason))
    };
    spec.shapes.iter().filter_map(problem).collect()
}

/// Refuses settings of DDP that contradict what it is used for.
pub(super) fn check_ddp(spec: &RunSpec) -> Vec<Invalid> {
    let mut problems = Vec::new();
    if !spec.ddp().is_some_and(|ddp| ddp.static_graph) {
        return problems;
    }
    if spec.gradient_accumulation_steps > 1 || spec.has_shape(Shape::SeveralBackwards) {
        // `expect_autograd_hooks_ INTERNAL ASSERT FAILED` in reducer.cpp, seen with torch 2.11 and 2.15: the
        // first backward enqueues a reduction though its forward did not prepare for one.
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
