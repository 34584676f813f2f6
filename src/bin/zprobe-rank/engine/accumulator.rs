//! A separate flat accumulator, reduced as a whole at the boundary.
//!
//! Follows `BF16_Optimizer` in `runtime/bf16_optimizer.py`: after each backward
//! `update_hp_grads` adds every `param.grad` to `fp32_groups_gradients_flat`, and at the boundary
//! `DeepSpeedEngine.allreduce_gradients` sums that buffer over the ranks and divides by `W`.

use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;
use zprobe::spec::Fault;
use zprobe::trace::{LayoutName, Phase, Point};

use super::{Context, GradientFlow, Microbatch, narrow, zeros};
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
        let gradients = zeros(&context, context.spec.grad_accum_dtype)?;
        let params = params.iter().map(Tensor::shallow_clone).collect();
        Ok(Self { context, params, gradients })
    }

    fn accumulate(&mut self, microbatch: Microbatch) -> Result<()> {
        let context = &self.context;
        context.phase(microbatch, Phase::Accumulate)?;
        let times = match context.spec.inject {
            Some(Fault::MicrobatchDropped) if microbatch.index == 0 => 0,
            Some(Fault::MicrobatchDoubled) if microbatch.index == 0 => 2,
            _ => 1,
        };
        for (param, place) in self.params.iter().zip(context.plan.params()) {
            let gradient = param.grad();
            if !gradient.defined() {
                continue;
            }
            let mut sum = narrow(&self.gradients, place.range())?;
            let addend = gradient.reshape([-1]).to_kind(kind_of(context.spec.grad_accum_dtype));
            context.poison(&addend, microbatch)?;
            for _ in 0..times {
                let _ = sum.f_add_(&addend)?;
            }
            clear_grad(param)?;
        }
        context
            .recorder
            .buffer(microbatch.at(Point::Accumulator, LayoutName::Full), &self.gradients)
    }

    fn reduce(&mut self, microbatch: Microbatch) -> Result<()> {
        let context = &self.context;
        context.phase(microbatch, Phase::Reduce)?;
        let skipped = context.has(Fault::NotAveraged)
            || (context.has_here(Fault::CollectiveSkipped) && microbatch.step == 0);
        if !skipped {
            let mut wire = self.gradients.to_kind(kind_of(context.spec.narrowest_comm_dtype()));
            context.communicator.all_reduce_sum(&wire, "accumulated gradients")?;
            let _ = wire.f_div_scalar_(context.communicator.world_size() as f64)?;
            self.gradients.f_copy_(&wire)?;
        }
        context.recorder.buffer(microbatch.at(Point::Reduced, LayoutName::Full), &self.gradients)
    }
}

impl GradientFlow for Accumulator {
    fn class(&self) -> &'static str {
        "zprobe Accumulator (as DeepSpeed BF16_Optimizer)"
    }

    fn backward(&mut self, loss: &Tensor, microbatch: Microbatch) -> Result<()> {
        loss.f_backward()?;
        if microbatch.boundary && self.context.has(Fault::BoundaryLeak) {
            self.reduce(microbatch)?;
            self.accumulate(microbatch)?;
        } else {
            self.accumulate(microbatch)?;
            if microbatch.boundary {
                self.reduce(microbatch)?;
            }
        }
        if microbatch.boundary {
            let at = microbatch.at(Point::BeforeStep, LayoutName::Full);
            self.context.recorder.buffer(at, &self.gradients)?;
        }
        Ok(())
    }

    fn partition_gradient(&self) -> Result<Tensor> {
        Ok(self.context.own(&self.gradients)?.to_kind(tch::Kind::Float).copy())
    }

    fn zero_grad(&mut self) -> Result<()> {
        let _ = self.gradients.f_zero_()?;
        Ok(())
    }
}
