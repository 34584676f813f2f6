//! The step: each rank updates its partition of the fp32 master weights (ZeRO stage 1,
//! arXiv 1910.02054, section 5.1).
//!
//! Follows `step` in `runtime/zero/stage_1_and_2.py`: overflow, loss scale, global norm, clipping,
//! inner optimizer.

use std::rc::Rc;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe::spec::{Fault, Offload};
use zprobe::trace::{Event, LayoutName, Phase, Point};

use super::clip::{clipping, global_norm};
use super::context::{Context, Microbatch};
use super::flat::narrow;
use super::inner::Inner;
use super::parameters::Parameters;
use super::scaler::LossScaler;
use crate::recorder::{At, Pieces};

/// Master weights and inner optimizers of one rank.
pub struct ShardedOptimizer {
    context: Rc<Context>,
    /// This rank's partition in fp32; on the host where the optimizer is offloaded.
    master: Tensor,
    /// One for each parameter group, with its view of the master weights.
    groups: Vec<(Tensor, std::ops::Range<usize>, Inner)>,
    scaler: Option<LossScaler>,
}

impl ShardedOptimizer {
    /// Copies this rank's partition of the parameters to fp32.
    pub fn new(context: Rc<Context>, parameters: &Parameters) -> Result<Self> {
        let home = match context.spec.offload {
            Offload::None => context.device,
            Offload::Cpu => Device::Cpu,
        };
        let master = parameters.own().f_to_device_(home, Kind::Float, false, true)?;
        let groups = context
            .partitioning
            .groups()
            .iter()
            .map(|group| {
                let view = narrow(&master, group.clone())?;
                let inner = Inner::new(context.spec.optimizer, &view);
                Ok((view, group.clone(), inner))
            })
            .collect::<Result<_>>()?;
        let scaler = LossScaler::of(&context.spec);
        Ok(Self { context, master, groups, scaler })
    }

    /// What losses are multiplied by.
    pub fn scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, LossScaler::scale)
    }

    /// Records the master weights.
    pub fn record(&self, step: Option<usize>) -> Result<()> {
        let (point, layout) = (Point::MasterWeights, LayoutName::Partition);
        let at = At { step, microbatch: None, point, layout };
        self.context.recorder.buffer(at, &Pieces::whole(&self.master))
    }

    /// Updates this rank's partition with its `gradient`, fp32 and scaled like the loss, and lets
    /// the parameters follow. An overflow on any rank skips the step on all.
    pub fn step(
        &mut self,
        mut gradient: Tensor,
        parameters: &mut Parameters,
        boundary: Microbatch,
    ) -> Result<()> {
        let context = Rc::clone(&self.context);
        context.phase(boundary, Phase::OptimizerStep)?;
        let scale = self.scale();
        let overflow = self.scaler.is_some() && self.overflow(&gradient)?;
        if let Some(scaler) = &mut self.scaler {
            context.recorder.emit(Event::LossScaled { step: boundary.step, scale, overflow })?;
            scaler.update(overflow);
        }
        if overflow {
            return Ok(());
        }
        if !context.has(Fault::LossScaleKept) {
            let _ = gradient.f_div_scalar_(scale)?;
        }
        let limit = context.spec.gradient_clipping;
        let norm = global_norm(&context, &gradient)?;
        context.recorder.emit(Event::GradientNorm {
            step: boundary.step,
            norm: norm.is_finite().then_some(norm),
            limit,
        })?;
        let factor = clipping(norm, limit);
        for _ in 0..if context.has(Fault::ClippedTwice) { 2 } else { 1 } {
            if factor != 1.0 {
                let _ = gradient.f_mul_scalar_(factor)?;
            }
        }
        if !context.has_here(Fault::StepSkipped) {
            let (point, layout) = (Point::OptimizerInput, LayoutName::Partition);
            let at = At { step: Some(boundary.step), microbatch: None, point, layout };
            context.recorder.buffer(at, &Pieces::whole(&gradient))?;
            for (weights, range, inner) in &mut self.groups {
                inner.step(weights, &narrow(&gradient, range.clone())?)?;
            }
        }
        context.phase(boundary, Phase::AllGather)?;
        parameters.update(&self.master)
    }

    /// Whether a gradient is not finite on any rank.
    fn overflow(&self, gradient: &Tensor) -> Result<bool> {
        let here = gradient.isfinite().logical_not().any().to_kind(Kind::Float).reshape([1]);
        let here = here.to_device(self.context.device);
        if !self.context.has(Fault::OverflowNotAgreed) {
            self.context.communicator.all_reduce_sum(&here, "overflow")?;
        }
        Ok(here.double_value(&[0]) > 0.0)
    }
}
