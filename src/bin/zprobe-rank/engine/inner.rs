//! Inner optimizers on a flat fp32 partition.

use anyhow::Result;
use tch::{Tensor, no_grad};
use zprobe::spec::Optimizer;

/// An optimizer and its state for one partition.
pub enum Inner {
    /// `w ← w − lr·g`
    Sgd {
        /// Learning rate.
        lr: f64,
    },
    /// `torch.optim.AdamW`, single-tensor form.
    Adamw {
        /// Learning rate.
        lr: f64,
        /// Decay of the first and second moment.
        betas: [f64; 2],
        /// Added to the root of the second moment.
        eps: f64,
        /// Decoupled weight decay.
        weight_decay: f64,
        /// First moment.
        exp_avg: Tensor,
        /// Second moment.
        exp_avg_sq: Tensor,
        /// Steps taken.
        steps: i32,
    },
}

impl Inner {
    /// The optimizer of `spec` for the partition `weights`.
    pub fn new(spec: Optimizer, weights: &Tensor) -> Self {
        match spec {
            Optimizer::Sgd { lr } => Self::Sgd { lr },
            Optimizer::Adamw { lr, betas, eps, weight_decay } => Self::Adamw {
                lr,
                betas,
                eps,
                weight_decay,
                exp_avg: weights.zeros_like(),
                exp_avg_sq: weights.zeros_like(),
                steps: 0,
            },
        }
    }

    /// Updates `weights` in place; both tensors are flat, fp32 and equally long.
    pub fn step(&mut self, weights: &mut Tensor, gradient: &Tensor) -> Result<()> {
        no_grad(|| {
            match self {
                Self::Sgd { lr } => {
                    let _ = weights.f_sub_(&(gradient * *lr))?;
                }
                Self::Adamw { lr, betas, eps, weight_decay, exp_avg, exp_avg_sq, steps } => {
                    *steps += 1;
                    let _ = weights.f_mul_scalar_(1.0 - *lr * *weight_decay)?;
                    let _ = exp_avg.f_lerp_(gradient, 1.0 - betas[0])?;
                    *exp_avg_sq = &*exp_avg_sq * betas[1] + gradient.square() * (1.0 - betas[1]);
                    let correction = betas.map(|beta| 1.0 - beta.powi(*steps));
                    let root = exp_avg_sq.sqrt() / correction[1].sqrt() + *eps;
                    let _ = weights.f_sub_(&(&*exp_avg / root * (*lr / correction[0])))?;
                }
            }
            Ok(())
        })
    }
}
