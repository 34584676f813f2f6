//! The way of gradients from backward to the optimizer, and where they wait.

use anyhow::Result;
use tch::Tensor;

use super::context::Microbatch;

/// A way of gradients from backward to the optimizer.
pub trait GradientFlow {
    /// Name of this type, and of the class in DeepSpeed that it follows.
    fn class(&self) -> &'static str;

    /// Begins a backward. Its loss is divided by the accumulation steps and multiplied by
    /// the loss scale.
    fn begin(&mut self, microbatch: Microbatch) -> Result<()>;

    /// Takes a parameter's gradient of that backward, which is complete in `param.grad`.
    fn arrived(&mut self, param: usize) -> Result<()>;

    /// Ends the backward, and records the gradients that this rank has accumulated.
    fn end(&mut self) -> Result<()>;

    /// True if gradients are reduced in this backward, and do not wait for a later one.
    fn reduces(&self) -> bool;

    /// Reduces the gradients that were not reduced yet over the ranks.
    fn reduce(&mut self) -> Result<()>;

    /// This rank's partition of the reduced gradient, fp32, for the inner optimizer.
    fn partition_gradient(&mut self) -> Result<Tensor>;

    /// Forgets the step's gradients.
    fn zero_grad(&mut self) -> Result<()>;
}
