//! A gradient flow with a separate flat accumulator, which is reduced as a whole at the gradient accumulation boundary.
//!
//! The module follows DeepSpeed's `BF16_Optimizer` in `runtime/bf16_optimizer.py`: after each backward pass,
//! `update_hp_grads` adds every `param.grad` to `fp32_groups_gradients_flat`, and at the boundary,
//! `DeepSpeedEngine.allreduce_gradients` sums that buffer over the ranks and multiplies it by `1/W`.

use std::rc::Rc;

use anyhow::Result;
use tch::{Kind, Tensor};
use zprobe_model::trace::{LayoutName, Point};

use super::context::{Context, Microbatch};
use super::flat::{narrow, partition_of};
use super::flow::GradientFlow;
use crate::collective::Collective;
use crate::dtype::kind_of;
use crate::shim::autograd::clear_grad;

/// The gradient accumulator of one rank.
pub struct Accumulator {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// The accumulated gradients in flat order with padding, in the accumulation dtype.
    gradients: Tensor,
    current: Microbatch,
}

impl Accumulator {
    /// Creates an accumulator of zeros.
    pub fn new(context: Rc<Context>, params: &[Tensor]) -> Result<Self> {
        let gradients = context.gradient_buffer(context.partitioning.numel())?;
        let params = params.iter().map(Tensor::shallow_clone).collect();
        Ok(Self { context, params, gradients, current: Microbatch::NONE })
    }

    /// The accumulated gradients in flat order.
    pub fn gradients(&self) -> &Tensor {
        &self.gradients
    }

    fn record(&self, point: Point) -> Result<()> {
        let context = &self.context;
        if !context.recorder.wants(point) {
            return Ok(());
        }
        let pieces = context.in_model_order(self.gradients.kind(), |param| {
            match context.partitioning.place(param) {
                Some(place) => narrow(&self.gradients, place),
                None => Ok(self.params[param].zeros_like().reshape([-1])),
            }
        })?;
        context.record(self.current, (point, LayoutName::Full), pieces)
    }
}

impl GradientFlow for Accumulator {
    fn class(&self) -> &'static str {
        "zprobe Accumulator (as DeepSpeed BF16_Optimizer)"
    }

    fn begin(&mut self, microbatch: Microbatch) -> Result<()> {
        self.current = microbatch;
        Ok(())
    }

    fn arrived(&mut self, param: usize) -> Result<()> {
        let Some(place) = self.context.partitioning.place(param) else { return Ok(()) };
        let param = &self.params[param];
        let mut sum = narrow(&self.gradients, place)?;
        let _ = sum.f_add_(&param.grad().reshape([-1]).to_kind(sum.kind()))?;
        clear_grad(param)
    }

    fn end(&mut self) -> Result<()> {
        if self.current.complete { self.record(Point::Accumulator) } else { Ok(()) }
    }

    fn reduces(&self) -> bool {
        self.current.boundary
    }

    fn reduce(&mut self) -> Result<()> {
        let settings = &self.context.settings;
        let mut wire = self.gradients.to_kind(kind_of(settings.wire_dtype));
        let sum = Collective::AllReduce(&wire);
        self.context.groups.gradients.run(sum, "accumulated gradients")?;
        let _ = wire.f_mul_scalar_(1.0 / settings.average_divisor)?;
        self.gradients.f_copy_(&wire)?;
        self.record(Point::Reduced)
    }

    fn partition_gradient(&mut self) -> Result<Tensor> {
        self.record(Point::BeforeStep)?;
        let Context { partitioning, settings, .. } = &*self.context;
        let own = partition_of(partitioning, &self.gradients, settings.owner)?;
        Ok(own.to_kind(Kind::Float))
    }

    fn zero_grad(&mut self) -> Result<()> {
        let _ = self.gradients.f_zero_()?;
        Ok(())
    }
}
