//! The optimizer step, in which each rank updates its partition of the fp32 master weights (ZeRO stage 1, arXiv
//! 1910.02054, section 5.1).
//!
//! The order follows DeepSpeed's `step` in `runtime/zero/stage_1_and_2.py`: overflow, loss scale, global norm,
//! clipping, inner optimizer.

use std::rc::Rc;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::Offload;
use zprobe_model::trace::{Event, LayoutName, Phase, Point};

use super::clip::{Clip, global_norm};
use super::context::{Context, Microbatch};
use super::inner::UpdateRule;
use super::parameters::ModelWeights;
use super::scaler::Scaler;
use crate::collective::Collective;
use crate::recorder::{BufferPieces, BufferPlace};

/// The master weights and the inner optimizers of one rank.
pub struct ShardedOptimizer {
    context: Rc<Context>,
    /// This rank's partition of the master weights; on the host if the optimizer is offloaded.
    master: Tensor,
    parts: StepParts,
}

/// The replaceable parts of an optimizer step.
pub struct StepParts {
    /// The loss scaler; `None` if the run is not in fp16.
    pub scaler: Option<Box<dyn Scaler>>,
    /// The gradient clipping.
    pub clip: Box<dyn Clip>,
    /// The inner optimizers, which hold views of the master weights.
    pub update: Box<dyn UpdateRule>,
}

/// Creates the master weights: an fp32 copy of `own`, this rank's partition of the parameters.
pub fn master_weights(context: &Context, own: &Tensor) -> Result<Tensor> {
    let home = match context.spec.offload {
        Offload::None => context.device,
        Offload::Cpu => Device::Cpu,
    };
    Ok(own.f_to_device_(home, Kind::Float, false, true)?)
}

impl ShardedOptimizer {
    /// Creates the optimizer for these master weights.
    pub fn new(context: Rc<Context>, master: Tensor, parts: StepParts) -> Self {
        Self { context, master, parts }
    }

    /// The loss scale of the current step; 1 without a scaler.
    pub fn scale(&self) -> f64 {
        self.parts.scaler.as_ref().map_or(1.0, |scaler| scaler.scale())
    }

    /// Records the master weights.
    pub fn record(&self, step: Option<usize>) -> Result<()> {
        let (point, layout) = (Point::MasterWeights, LayoutName::Partition);
        let at = BufferPlace { step, microbatch: None, point, layout };
        self.context.recorder.buffer(at, &BufferPieces::whole(&self.master))
    }

    /// Updates this rank's partition with its `gradient` (fp32, with the loss scale), and then the parameters. An
    /// overflow on any rank skips the step on all ranks.
    pub fn step(
        &mut self,
        mut gradient: Tensor,
        parameters: &mut dyn ModelWeights,
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

    /// Divides a gradient by the loss scale, unless the gradient of any rank overflowed; returns true for an overflow.
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

/// True if the gradient of any rank has an element that is not finite.
fn overflows(context: &Context, gradient: &Tensor) -> Result<bool> {
    let here = gradient.isfinite().logical_not().any().to_kind(Kind::Float).reshape([1]);
    let here = here.to_device(context.device);
    context.groups.overflow.run(Collective::AllReduce(&here), "overflow")?;
    Ok(here.double_value(&[0]) > 0.0)
}
