//! A separate flat accumulator, reduced as a whole at the boundary.
//!
//! Follows `BF16_Optimizer` in `runtime/bf16_optimizer.py`: after each backward
//! `update_hp_grads` adds every `param.grad` to `fp32_groups_gradients_flat`, and at the boundary
//! `DeepSpeedEngine.allreduce_gradients` sums that buffer over the ranks and multiplies it by `1/W`.

use std::rc::Rc;

use anyhow::Result;
use tch::{Kind, Tensor};
use zprobe::spec::Fault;
use zprobe::trace::{LayoutName, Phase, Point};

use super::context::{Context, Microbatch};
use super::flat::{narrow, partition_of};
use super::{GradientFlow, in_model_order};
use crate::recorder::kind_of;
use crate::shim::autograd::clear_grad;

/// The accumulator of one rank.
pub struct Accumulator {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// All gradients in flat order, padded, in the accumulation dtype.
    gradients: Tensor,
}

impl Accumulator {
    /// An empty accumulator.
    pub fn new(context: Rc<Context>, params: &[Tensor]) -> Result<Self> {
        let gradients = context.gradient_buffer(context.partitioning.numel())?;
        let params = params.iter().map(Tensor::shallow_clone).collect();
        Ok(Self { context, params, gradients })
    }

    fn accumulate(&mut self, microbatch: Microbatch) -> Result<()> {
        let context = &self.context;
        context.phase(microbatch, Phase::Accumulate)?;
        for (index, param) in self.params.iter().enumerate() {
            let gradient = param.grad();
            let Some(place) = context.partitioning.place(index) else { continue };
            if !gradient.defined() {
                continue;
            }
            let mut sum = narrow(&self.gradients, place)?;
            let addend = gradient.reshape([-1]).to_kind(sum.kind());
            context.disturb(index, &addend, microbatch)?;
            let _ = sum.f_add_(&addend)?;
            clear_grad(param)?;
        }
        Ok(())
    }

    fn reduce(&mut self, microbatch: Microbatch) -> Result<()> {
        let context = &self.context;
        context.phase(microbatch, Phase::Reduce)?;
        let skipped = context.has(Fault::NotAveraged)
            || (context.has_here(Fault::CollectiveSkipped) && microbatch.step == 0);
        if !skipped {
            let mut wire = self.gradients.to_kind(kind_of(context.wire_dtype()));
            context.communicator.all_reduce_sum(&wire, "accumulated gradients")?;
            let _ = wire.f_mul_scalar_(1.0 / context.divisor())?;
            self.gradients.f_copy_(&wire)?;
        }
        Ok(())
    }

    fn record(&self, microbatch: Microbatch, point: Point, scale: f64) -> Result<()> {
        let context = &self.context;
        if !context.recorder.wants(point) {
            return Ok(());
        }
        let pieces = in_model_order(context, self.gradients.kind(), |param| {
            match context.partitioning.place(param) {
                Some(place) => narrow(&self.gradients, place),
                None => Ok(self.params[param].zeros_like().reshape([-1])),
            }
        })?;
        let at = microbatch.at(point, LayoutName::Full);
        context.recorder.buffer(at, &pieces.unscaled(scale))
    }
}

impl GradientFlow for Accumulator {
    fn class(&self) -> &'static str {
        "zprobe Accumulator (as DeepSpeed BF16_Optimizer)"
    }

    fn backward(&mut self, loss: &Tensor, microbatch: Microbatch, scale: f64) -> Result<()> {
        loss.f_backward()?;
        let leak = microbatch.boundary && self.context.has(Fault::BoundaryLeak);
        if leak {
            self.reduce(microbatch)?;
            self.record(microbatch, Point::Reduced, scale)?;
        }
        self.accumulate(microbatch)?;
        if microbatch.complete {
            self.record(microbatch, Point::Accumulator, scale)?;
        }
        if microbatch.boundary && !leak {
            self.reduce(microbatch)?;
            self.record(microbatch, Point::Reduced, scale)?;
        }
        if microbatch.boundary {
            self.record(microbatch, Point::BeforeStep, scale)?;
        }
        Ok(())
    }

    fn partition_gradient(&self) -> Result<Tensor> {
        let Context { partitioning, .. } = &*self.context;
        let own = partition_of(partitioning, &self.gradients, self.context.owner())?;
        Ok(own.to_kind(Kind::Float))
    }

    fn zero_grad(&mut self) -> Result<()> {
        let _ = self.gradients.f_zero_()?;
        Ok(())
    }
}
