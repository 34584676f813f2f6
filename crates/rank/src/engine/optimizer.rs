//! The step: each rank updates its partition of the fp32 master weights (ZeRO stage 1,
//! arXiv 1910.02054, section 5.1).
//!
//! Follows `step` in `runtime/zero/stage_1_and_2.py`: overflow, loss scale, global norm, clipping,
//! inner optimizer.

use std::rc::Rc;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::Offload;
use zprobe_model::trace::{Event, LayoutName, Phase, Point};

use super::clip::{Clip, global_norm};
use super::context::{Context, Microbatch};
use super::inner::Update;
use super::parameters::Weights;
use super::scaler::Scaler;
use crate::collective::Collective;
use crate::recorder::{At, Pieces};

/// Master weights and inner optimizers of one rank.
pub struct ShardedOptimizer {
    context: Rc<Context>,
    /// This rank's partition in fp32; on the host where the optimizer is offloaded.
    master: Tensor,
    parts: Parts,
}

/// The parts of a step.
pub struct Parts {
    /// The loss scaler; none where losses need no scale.
    pub scaler: Option<Box<dyn Scaler>>,
    /// The limit on the gradient's norm.
    pub clip: Box<dyn Clip>,
    /// The inner optimizers, which have views of the master weights.
    pub update: Box<dyn Update>,
}

/// This rank's partition of the parameters in fp32.
pub fn master_weights(context: &Context, own: &Tensor) -> Result<Tensor> {
    let home = match context.spec.offload {
        Offload::None => context.device,
        Offload::Cpu => Device::Cpu,
    };
    Ok(own.f_to_device_(home, Kind::Float, false, true)?)
}

impl ShardedOptimizer {
    /// The optimizer of these master weights.
    pub fn new(context: Rc<Context>, master: Tensor, parts: Parts) -> Self {
        Self { context, master, parts }
    }

    /// The loss scale of the step that runs.
    pub fn scale(&self) -> f64 {
        self.parts.scaler.as_ref().map_or(1.0, |scaler| scaler.scale())
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
        parameters: &mut dyn Weights,
        boundary: Microbatch,
    ) -> Result<()> {
        let (context, step) = (Rc::clone(&self.context), boundary.step);
        context.phase(boundary, Phase::OptimizerStep)?;
        let overflow = self.unscale(&mut gradient, step)?;
        if overflow {
            return Ok(());
        }
        let limit = context.spec.gradient_clipping;
        let norm = global_norm(&context, &gradient)?;
        let shown = norm.is_finite().then_some(norm);
        context.recorder.emit(Event::GradientNorm { step, norm: shown, limit })?;
        self.parts.clip.clip(&mut gradient, norm)?;
        self.parts.update.step(&gradient, step)?;
        context.phase(boundary, Phase::AllGather)?;
        parameters.update(&self.master)
    }

    /// Takes the loss scale out of a gradient, unless it overflowed on any rank; returns true if it
    /// did.
    fn unscale(&mut self, gradient: &mut Tensor, step: usize) -> Result<bool> {
        let Some(scaler) = &mut self.parts.scaler else { return Ok(false) };
        let overflow = overflows(&self.context, gradient)?;
        let scale = scaler.scale();
        self.context.recorder.emit(Event::LossScaled { step, scale, overflow })?;
        if !overflow {
            scaler.unscale(gradient)?;
        }
        scaler.update(overflow);
        Ok(overflow)
    }
}

/// True if the gradient of any rank is not finite.
fn overflows(context: &Context, gradient: &Tensor) -> Result<bool> {
    let here = gradient.isfinite().logical_not().any().to_kind(Kind::Float).reshape([1]);
    let here = here.to_device(context.device);
    context.groups.overflow.run(Collective::AllReduce(&here), "overflow")?;
    Ok(here.double_value(&[0]) > 0.0)
}
