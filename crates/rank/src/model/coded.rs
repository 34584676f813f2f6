//! The coded model, whose loss is linear in every parameter: `S·Σ_p <p, x[r,m,p]>`.
//!
//! The gradient with respect to `p` is `S·x[r,m,p]` for any value of the parameter, and `x` is a row of the run's
//! [`Code`]. With `S = W·GA`, the averaged sum consists of integers. Parameters start at small multiples of the
//! learning rate, so that plain SGD keeps the values exact, too. The [`Workload`] names the terms of each loss.

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::code::Code;
use zprobe_model::spec::workload::Infinite;
use zprobe_model::spec::{Plan, RunSpec, Workload};

use super::{ProbeModel, leaf, shape};
use crate::dtype::kind_of;

/// The parameters and the codes of one rank.
pub struct CodedModel {
    spec: RunSpec,
    plan: Plan,
    workload: Workload,
    rank: usize,
    device: Device,
    code: Code,
    parameters: Vec<Tensor>,
    /// A parameter that the engine does not manage.
    unmanaged: Tensor,
    /// The terms of the next loss: the index of the parameter, and the data multiplied by the term's factor.
    prepared: Vec<(usize, Tensor)>,
}

impl CodedModel {
    /// Creates the parameters with their exact initial values.
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
        let workload = Workload::new(spec, plan);
        let (spec, plan, prepared) = (spec.clone(), plan.clone(), Vec::new());
        Ok(Self { spec, plan, workload, rank, device, code, parameters, unmanaged, prepared })
    }

    /// The terms (parameter, factor) of each loss of a microbatch, without the terms of frozen parameters.
    fn losses(&self, step: usize, microbatch: usize) -> Vec<Vec<(usize, f64)>> {
        let trainable = |(param, _): &(usize, f64)| self.plan.params()[*param].trainable;
        let losses = self.workload.losses(step, microbatch).iter();
        losses.map(|loss| loss.terms().into_iter().filter(trainable).collect()).collect()
    }

    /// A parameter's data in a microbatch, in fp32.
    fn data(&self, step: usize, microbatch: usize, param: usize) -> Result<Tensor> {
        let column = self.spec.column(step, self.rank, microbatch);
        let elements = self.plan.params()[param].range();
        let mut values: Vec<f32> =
            elements.map(|element| f32::from(self.code.value(column, element))).collect();
        let is_infinite = |it: Infinite| {
            step < it.steps && (microbatch, self.rank, param) == (it.microbatch, it.rank, it.param)
        };
        if self.workload.infinite.is_some_and(is_infinite) {
            values[0] = f32::INFINITY;
        }
        let param = &self.plan.params()[param];
        let values = Tensor::from_slice(&values).f_view(shape(&param.shape)?.as_slice())?;
        Ok(values.to_device(self.device))
    }
}

impl ProbeModel for CodedModel {
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
            // The sum is in fp32, so that the later division by GA does not round twice.
            sum += (self.parameters[param].to_kind(Kind::Float) * data).sum(Kind::Float);
        }
        Ok(sum * self.spec.contributions_per_step() as f64)
    }

    fn is_coded(&self) -> bool {
        true
    }
}
