//! The coded model: a loss linear in every parameter, `S·Σ_p <p, x[r,m,p]>`.
//!
//! Its gradient with respect to `p` is `S·x[r,m,p]` whatever the parameter's value, and `x` is a
//! row of the run's [`Code`]. With `S = W·GA` the averaged sum lands on integers. Parameters start
//! at small multiples of the learning rate, so that plain SGD keeps them exact too.
//!
//! Shapes change how a loss comes about, never what the gradients of a microbatch add up to, but for
//! the parameters that they leave unused.

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe::spec::code::Code;
use zprobe::spec::{Plan, RunSpec, Shape};

use super::{ProbeModel, leaf, shape};
use crate::dtype::kind_of;

/// Parameters and codes of one rank.
pub struct Coded {
    spec: RunSpec,
    plan: Plan,
    rank: usize,
    device: Device,
    code: Code,
    parameters: Vec<Tensor>,
    /// A parameter that the engine is never given.
    unmanaged: Tensor,
    /// The terms of the next loss, with their data.
    prepared: Vec<(usize, Tensor)>,
}

/// A term of a loss: a parameter, and a factor of its data.
type Term = (usize, f64);

impl Coded {
    /// Makes the parameters.
    pub fn new(spec: &RunSpec, plan: &Plan, rank: usize, device: Device) -> Result<Self> {
        let code = Plan::code(spec);
        let unit = spec.optimizer.readable_lr().unwrap_or(1.0);
        let parameters = plan
            .params()
            .iter()
            .map(|param| {
                let initial = |element| f32::from(code.initial(element)) * unit as f32;
                let values: Vec<f32> = param.range().map(initial).collect();
                let values = Tensor::from_slice(&values).f_view(shape(&param.shape)?.as_slice())?;
                let values = values.to_kind(kind_of(spec.dtype)).to_device(device);
                Ok(if param.trainable { leaf(&values) } else { values })
            })
            .collect::<Result<_>>()?;
        let unmanaged = leaf(&Tensor::ones([1], (Kind::Float, device)));
        let (spec, plan, prepared) = (spec.clone(), plan.clone(), Vec::new());
        Ok(Self { spec, plan, rank, device, code, parameters, unmanaged, prepared })
    }

    /// The terms of each loss of a microbatch, one loss after the other.
    fn losses(&self, step: usize, microbatch: usize) -> Vec<Vec<Term>> {
        let ga = self.spec.gradient_accumulation_steps;
        let used = |param: &usize| self.plan.usage(*param).uses(step, microbatch, ga);
        let has = |shape: Shape| self.spec.has_shape(shape);
        let about = |shape: Shape, param: usize| {
            has(shape) && shape.param() == Some(&*self.plan.params()[param].name)
        };
        if has(Shape::Unmanaged) && microbatch + 1 == ga {
            return vec![Vec::new()];
        }
        let mut terms = Vec::new();
        let mut penalty = None;
        for param in (0..self.parameters.len()).filter(used) {
            // Twice in one place, and once less in another.
            let twice = about(Shape::Tied, param) || about(Shape::Bypass, param);
            if twice {
                terms.extend([(param, 2.0), (param, -1.0)]);
            } else if about(Shape::PenaltyBackward, param) {
                terms.push((param, 2.0));
                penalty = Some((param, -1.0));
            } else {
                terms.push((param, 1.0));
            }
        }
        let mut losses = if has(Shape::SeveralBackwards) {
            [2.0, -1.0]
                .map(|part| terms.iter().map(|&(param, factor)| (param, part * factor)).collect())
                .to_vec()
        } else {
            vec![terms]
        };
        losses.extend(penalty.map(|term| vec![term]));
        losses
    }

    /// A parameter's data in a microbatch, fp32.
    fn data(&self, step: usize, microbatch: usize, param: usize) -> Result<Tensor> {
        let column = self.spec.column(step, self.rank, microbatch);
        let param = &self.plan.params()[param];
        let mut values: Vec<f32> =
            param.range().map(|element| f32::from(self.code.value(column, element))).collect();
        let infinite = Shape::InfinityOnOneRank;
        let last_rank = self.rank + 1 == self.spec.world_size;
        if self.spec.has_shape(infinite)
            && infinite.param() == Some(&param.name)
            && (step, microbatch, last_rank) == (0, 0, true)
        {
            values[0] = f32::INFINITY;
        }
        let values = Tensor::from_slice(&values).f_view(shape(&param.shape)?.as_slice())?;
        Ok(values.to_device(self.device))
    }
}

impl ProbeModel for Coded {
    fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    fn parts(&self, step: usize, microbatch: usize) -> usize {
        self.losses(step, microbatch).len()
    }

    fn prepare(&mut self, step: usize, microbatch: usize, part: usize) -> Result<()> {
        let terms = &self.losses(step, microbatch)[part];
        self.prepared = terms
            .iter()
            .map(|&(param, factor)| Ok((param, self.data(step, microbatch, param)? * factor)))
            .collect::<Result<_>>()?;
        Ok(())
    }

    fn loss(&mut self) -> Result<Tensor> {
        if self.prepared.is_empty() {
            return Ok(self.unmanaged.square().sum(Kind::Float));
        }
        let mut sum = Tensor::zeros([], (Kind::Float, self.device));
        for (param, data) in self.prepared.drain(..) {
            // In fp32: the division by GA that follows must not round twice.
            sum += (self.parameters[param].to_kind(Kind::Float) * data).sum(Kind::Float);
        }
        Ok(sum * self.spec.contributions_per_step() as f64)
    }

    fn is_coded(&self) -> bool {
        true
    }
}
