//! The trait for the flow of gradients from the backward pass to the optimizer, and for the storage of the gradients
//! before the optimizer step.

use anyhow::Result;
use tch::Tensor;

use super::context::Microbatch;

/// The flow of gradients from the backward pass to the optimizer.
pub trait GradientFlow {
    /// The name of this type, and the name of DeepSpeed's corresponding class.
    fn class(&self) -> &'static str;

    /// Begins a backward pass. The loss is already divided by the accumulation steps and multiplied by the loss scale.
    fn begin(&mut self, microbatch: Microbatch) -> Result<()>;

    /// Takes the gradient of a parameter from `param.grad`, where the gradient of this backward pass is complete.
    fn arrived(&mut self, param: usize) -> Result<()>;

    /// Ends the backward pass, and records the gradients that this rank has accumulated.
    fn end(&mut self) -> Result<()>;

    /// True if gradients are reduced in this backward pass, and not only in a later one.
    fn reduces(&self) -> bool;

    /// Reduces all gradients that are not yet reduced over the ranks.
    fn reduce(&mut self) -> Result<()>;

    /// This rank's partition of the reduced gradient in fp32, for the inner optimizer.
    fn partition_gradient(&mut self) -> Result<Tensor>;

    /// Sets the gradients of the step to zero.
    fn zero_grad(&mut self) -> Result<()>;
}
