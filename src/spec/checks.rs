//! Checks for settings and shapes that an engine cannot have.

use super::{Dataflow, Dtype, Engine, Invalid, Offload, RunSpec, Shape, SpecRequest};

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
    let mut problems = Vec::new();
    if !spec.ddp().is_some_and(|ddp| ddp.static_graph) {
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
