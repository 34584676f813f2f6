//! The coded model: a loss linear in every parameter, `S·Σ_p <p, x[r,m,p]>`.
//!
//! Its gradient with respect to `p` is `S·x[r,m,p]` whatever the parameter's value, and `x` is a
//! row of the run's [`Code`]. With `S = W·GA` the averaged sum lands on integers. Parameters start
//! at small multiples of the learning rate, so that plain SGD keeps them exact too.

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe::spec::code::Code;
use zprobe::spec::{Plan, RunSpec};

use super::{ProbeModel, leaf, shape};
use crate::recorder::kind_of;

/// Parameters and codes of one rank.
pub struct Coded {
    parameters: Vec<Tensor>,
    /// By column of this rank (step, microbatch), then by parameter: fp32, ±1.
    codes: Vec<Vec<Tensor>>,
    gradient_accumulation_steps: usize,
    scale: f64,
}

impl Coded {
    /// Lays out parameters and this rank's codes.
    pub fn new(spec: &RunSpec, plan: &Plan, rank: usize) -> Result<Self> {
        let code = Plan::code(spec);
        let unit = spec.optimizer.readable_lr().unwrap_or(1.0);
        let initial = |element: usize| f32::from(code.initial(element)) * unit as f32;
        let parameters = tensors(plan, initial)?
            .iter()
            .map(|values| leaf(&values.to_kind(kind_of(spec.dtype))))
            .collect();
        let codes = (0..spec.steps)
            .flat_map(|step| (0..spec.gradient_accumulation_steps).map(move |m| (step, m)))
            .map(|(step, microbatch)| {
                let column = spec.column(step, rank, microbatch);
                tensors(plan, |element| row(&code, column, element))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            parameters,
            codes,
            gradient_accumulation_steps: spec.gradient_accumulation_steps,
            scale: spec.contributions_per_step() as f64,
        })
    }
}

fn row(code: &Code, column: usize, element: usize) -> f32 {
    f32::from(code.value(column, element))
}

/// One fp32 tensor per parameter, filled by flat element.
fn tensors(plan: &Plan, value: impl Fn(usize) -> f32) -> Result<Vec<Tensor>> {
    plan.params()
        .iter()
        .map(|param| {
            let values: Vec<f32> = param.range().map(&value).collect();
            Ok(Tensor::from_slice(&values).view(shape(&param.shape)?.as_slice()))
        })
        .collect()
}

impl ProbeModel for Coded {
    fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    fn loss(&self, step: usize, microbatch: usize) -> Tensor {
        let codes = &self.codes[step * self.gradient_accumulation_steps + microbatch];
        let zero = Tensor::zeros([], (Kind::Float, Device::Cpu));
        let inner = self.parameters.iter().zip(codes).fold(zero, |sum, (parameter, code)| {
            // In fp32: the division by GA that follows must not round twice.
            sum + (parameter.to_kind(Kind::Float) * code).sum(Kind::Float)
        });
        inner * self.scale
    }

    fn is_coded(&self) -> bool {
        true
    }
}
