//! The inner optimizers, which update a flat fp32 partition.

use std::ops::Range;
use std::rc::Rc;

use anyhow::{Result, bail};
use tch::{Tensor, no_grad};
use zprobe_model::spec::Optimizer;
use zprobe_model::trace::{LayoutName, Point};

use super::context::Context;
use super::flat::narrow;
use crate::recorder::{BufferPieces, BufferPlace};

/// An algorithm that updates the master weights.
pub trait UpdateRule {
    /// Updates this rank's partition with `gradient`, a flat fp32 tensor of the same length.
    fn step(&mut self, gradient: &Tensor, step: usize) -> Result<()>;
}

/// The inner optimizers of one rank: one for each parameter group, each with a view of the master weights.
pub struct ParameterGroups {
    context: Rc<Context>,
    groups: Vec<(Tensor, Range<usize>, InnerOptimizer)>,
}

impl ParameterGroups {
    /// Creates the optimizers for the partition `master`.
    pub fn new(context: Rc<Context>, master: &Tensor) -> Result<Self> {
        let groups = context.partitioning.groups().iter().map(|group| {
            let view = narrow(master, group.clone())?;
            let inner = InnerOptimizer::new(context.spec.optimizer, &view);
            Ok((view, group.clone(), inner))
        });
        Ok(Self { groups: groups.collect::<Result<_>>()?, context })
    }
}

impl UpdateRule for ParameterGroups {
    fn step(&mut self, gradient: &Tensor, step: usize) -> Result<()> {
        let (point, layout) = (Point::OptimizerInput, LayoutName::Partition);
        let at = BufferPlace { step: Some(step), microbatch: None, point, layout };
        self.context.recorder.buffer(at, &BufferPieces::whole(gradient))?;
        self.groups.iter_mut().try_for_each(|(weights, range, inner)| {
            inner.step(weights, &narrow(gradient, range.clone())?)
        })
    }
}

/// The inner optimizer of one parameter group, with its state.
struct InnerOptimizer {
    algorithm: Optimizer,
    steps: i32,
    /// The first moment (mean of gradients); always zero for SGD.
    exp_avg: Tensor,
    /// The second moment (mean of squared gradients); always zero for SGD.
    exp_avg_sq: Tensor,
}

impl InnerOptimizer {
    /// Creates the optimizer for `weights`.
    fn new(algorithm: Optimizer, weights: &Tensor) -> Self {
        let (exp_avg, exp_avg_sq) = (weights.zeros_like(), weights.zeros_like());
        Self { algorithm, steps: 0, exp_avg, exp_avg_sq }
    }

    /// Updates `weights` in place. `weights` and `gradient` are flat fp32 tensors of the same length.
    fn step(&mut self, weights: &mut Tensor, gradient: &Tensor) -> Result<()> {
        self.steps += 1;
        no_grad(|| match self.algorithm {
            Optimizer::Sgd { lr } => {
                let _ = weights.f_sub_(&(gradient * lr))?;
                Ok(())
            }
            Optimizer::Adamw { lr, betas, eps, weight_decay } => {
                // The formulas follow the single-tensor form of torch.optim.AdamW.
                let _ = weights.f_mul_scalar_(1.0 - lr * weight_decay)?;
                let _ = self.exp_avg.f_lerp_(gradient, 1.0 - betas[0])?;
                self.exp_avg_sq =
                    &self.exp_avg_sq * betas[1] + gradient.square() * (1.0 - betas[1]);
                let correction = betas.map(|beta| 1.0 - beta.powi(self.steps));
                let root = self.exp_avg_sq.sqrt() / correction[1].sqrt() + eps;
                let _ = weights.f_sub_(&(&self.exp_avg / root * (lr / correction[0])))?;
                Ok(())
            }
            Optimizer::Muon => bail!("only DeepSpeed has Muon"),
        })
    }
}
