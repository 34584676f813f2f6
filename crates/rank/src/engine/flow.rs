//! The trait for the flow of gradients from the backward pass to the optimizer, and their storage in between.

use anyhow::Result;
use tch::Tensor;

use super::context::Microbatch;

/// The flow of gradients from the backward pass to the optimizer.
pub trait GradientFlow {
    /// The name of this type, and of DeepSpeed's corresponding class.
    fn class(&self) -> &'static str;

    /// Begins a backward pass. The loss is already divided by the accumulation steps and multiplied by the loss scale.
    fn begin(&mut self, microbatch: Microbatch) -> Result<()>;

    /// Takes a parameter's gradient of this backward pass from `param.grad`, where it is complete.
    fn arrived(&mut self, param: usize) -> Result<()>;

    /// Ends the backward pass, and records the gradients that this rank has accumulated.
    fn end(&mut self) -> Result<()>;

    /// True if this backward pass reduces gradients, and does not leave them to a later pass.
    fn reduces(&self) -> bool;

    /// Reduces over the ranks the gradients that are not reduced yet.
    fn reduce(&mut self) -> Result<()>;

    /// This rank's partition of the reduced gradient in fp32, for the inner optimizer.
    fn partition_gradient(&mut self) -> Result<Tensor>;

    /// Sets the gradients of the step to zero.
    fn zero_grad(&mut self) -> Result<()>;
}
