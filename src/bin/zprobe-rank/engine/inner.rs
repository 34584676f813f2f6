//! Inner optimizers on a flat fp32 partition.

use anyhow::Result;
use tch::{Tensor, no_grad};
use zprobe::spec::Optimizer;

/// An optimizer and its state for one partition.
pub struct Inner {
    algorithm: Optimizer,
    steps: i32,
    /// First moment; SGD leaves it at zero.
    exp_avg: Tensor,
    /// Second moment; SGD leaves it at zero.
    exp_avg_sq: Tensor,
}

impl Inner {
    /// The optimizer for the partition `weights`.
    pub fn new(algorithm: Optimizer, weights: &Tensor) -> Self {
        let (exp_avg, exp_avg_sq) = (weights.zeros_like(), weights.zeros_like());
        Self { algorithm, steps: 0, exp_avg, exp_avg_sq }
    }

    /// Updates `weights` in place; both tensors are flat, fp32 and as long as the partition.
    pub fn step(&mut self, weights: &mut Tensor, gradient: &Tensor) -> Result<()> {
        self.steps += 1;
        no_grad(|| match self.algorithm {
            Optimizer::Sgd { lr } => {
                let _ = weights.f_sub_(&(gradient * lr))?;
                Ok(())
            }
            Optimizer::Adamw { lr, betas, eps, weight_decay } => {
                // As in torch.optim.AdamW, single-tensor form.
                let _ = weights.f_mul_scalar_(1.0 - lr * weight_decay)?;
                let _ = self.exp_avg.f_lerp_(gradient, 1.0 - betas[0])?;
                self.exp_avg_sq =
                    &self.exp_avg_sq * betas[1] + gradient.square() * (1.0 - betas[1]);
                let correction = betas.map(|beta| 1.0 - beta.powi(self.steps));
                let root = self.exp_avg_sq.sqrt() / correction[1].sqrt() + eps;
                let _ = weights.f_sub_(&(&self.exp_avg / root * (lr / correction[0])))?;
                Ok(())
            }
        })
    }
}
