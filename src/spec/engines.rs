//! Settings and shapes that an engine leaves no room for.

use super::engine::Staging;
use super::{Dataflow, Dtype, Engine, Invalid, Offload, RunSpec, Shape, SpecRequest};

/// Bytes in a MiB.
pub(super) const MIB: f64 = 1_048_576.0;

impl SpecRequest {
    /// Refuses what the engine has no place for: nothing that was asked for is ignored.
    pub(super) fn check_engine(&self, engine: Engine) -> Result<(), Invalid> {
        let other = "choose another with --engine";
        let native_only = "use --engine native";
        let deepspeed_only = "use --engine deepspeed";
        let ddp_only = "use --engine ddp";
        let is_set = |flag: Option<bool>| flag.is_some();
        let (native, deepspeed) = (engine == Engine::Native, engine == Engine::DeepSpeed);
        let zero = native || deepspeed;
        let (ddp, fsdp2) = (engine == Engine::Ddp, engine == Engine::Fsdp2);
        let rows = [
            ("--dataflow", self.dataflow.is_some(), native, native_only),
            (
                "--grad-accum-dtype",
                self.grad_accum_dtype.is_some(),
                zero,
                "ddp accumulates in --dtype, fsdp2 in --comm-dtype",
            ),
            ("--comm-dtype", self.comm_dtype.is_some(), !ddp, "use --comm-hook"),
            ("--inject", self.inject.is_some(), native, native_only),
            ("--stage", self.stage.is_some(), zero, other),
            ("--reduce-bucket-size", self.reduce_bucket_size.is_some(), zero, other),
            ("--allgather-bucket-size", self.allgather_bucket_size.is_some(), native, native_only),
            ("--parameter-groups", self.parameter_groups.is_some(), native, native_only),
            ("--offload", self.offload == Some(Offload::Cpu), zero, other),
            ("--overlap-comm", is_set(self.overlap_comm), zero, other),
            ("--contiguous-gradients", is_set(self.contiguous_gradients), zero, other),
            ("--reduce-scatter", is_set(self.reduce_scatter), zero, other),
            (
                "--immediate-grad-update",
                is_set(self.immediate_grad_update),
                deepspeed,
                deepspeed_only,
            ),
            ("--loss-scale", self.loss_scale.is_some(), zero, other),
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
        ];
        match rows.into_iter().find(|(_, asked, has, _)| *asked && !has) {
            Some((flag, _, _, advice)) => Err(Invalid::NotOfThisEngine { flag, engine, advice }),
            None => Ok(()),
        }
    }

    pub(super) fn resolve_stage(&self, engine: Engine) -> Result<u8, Invalid> {
        let stage = self.stage.unwrap_or(match engine.traits().staging {
            Staging::Chosen => 1,
            Staging::Always(stage) => stage,
        });
        if stage > 3 { Err(Invalid::NoSuchStage(stage)) } else { Ok(stage) }
    }

    /// Settings of the native engine, with DeepSpeed's defaults (`DeepSpeedZeroConfig` in
    /// `runtime/zero/config.py`).
    pub(super) fn fill_native(&self, spec: &mut RunSpec) -> Result<(), Invalid> {
        spec.allgather_bucket_size = Some(self.allgather_bucket_size.unwrap_or(500_000_000));
        spec.parameter_groups = Some(self.parameter_groups.unwrap_or(1));
        if spec.dataflow == Some(Dataflow::IpgBucket) {
            spec.overlap_comm = Some(self.overlap_comm.unwrap_or(spec.stage == 3));
            spec.contiguous_gradients = Some(self.contiguous_gradients.unwrap_or(true));
            spec.reduce_scatter = Some(self.reduce_scatter.unwrap_or(true));
            return Ok(());
        }
        let no_buckets = "the accumulator dataflow has no buckets; use --dataflow ipg-bucket";
        let rows = [
            (spec.stage >= 2, "--dataflow accumulator", "it belongs to stages 0 and 1"),
            (
                spec.offload == Offload::Cpu,
                "--dataflow accumulator --offload cpu",
                "gradients are offloaded from buckets; use --dataflow ipg-bucket",
            ),
            (spec.overlap_comm.is_some(), "--overlap-comm", no_buckets),
            (spec.contiguous_gradients.is_some(), "--contiguous-gradients", no_buckets),
            (spec.reduce_scatter.is_some(), "--reduce-scatter", no_buckets),
            (self.reduce_bucket_size.is_some(), "--reduce-bucket-size", no_buckets),
        ];
        match rows.into_iter().find(|(unfit, _, _)| *unfit) {
            Some((_, asked, reason)) => Err(Invalid::contradiction(asked, reason)),
            None => Ok(()),
        }
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
    let holds = (engine.traits().can_accumulate)(model, accum);
    if holds { Ok(()) } else { Err(Invalid::NarrowAccumulation { accum, model }) }
}

/// Refuses shapes that the engine leaves no room for.
pub(super) fn check_shapes(spec: &RunSpec) -> Result<(), Invalid> {
    let reason = |shape: Shape| match shape.only_on() {
        Some((engine, reason)) if engine != spec.engine => Some(reason),
        _ => (spec.engine.traits().leaves_no_room)(spec, shape),
    };
    match spec.shapes.iter().find_map(|&shape| Some((shape, reason(shape)?))) {
        Some((shape, reason)) => refuse(format!("--shape {shape}"), reason),
        None => Ok(()),
    }
}

/// Refuses settings of DDP that contradict what it is used for.
pub(super) fn check_ddp(spec: &RunSpec) -> Result<(), Invalid> {
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
    Err(Invalid::contradiction(asked, reason))
}
