//! The synthetic models: their parameters, and their losses in each step and microbatch.

mod coded;
mod mlp;

use anyhow::Result;
use tch::{Device, Tensor};
use zprobe_model::spec::{Model, Plan, RunSpec};

/// A model with its data on one rank.
pub trait ProbeModel {
    /// The parameters in flat order, with equal values on all ranks. They are leaves, and require gradients unless they
    /// are frozen.
    fn parameters(&self) -> &[Tensor];

    /// The number of losses of a microbatch. Each loss has its own backward pass.
    fn parts(&self, step: usize, microbatch: usize) -> usize;

    /// Creates the data of one loss, as a data loader would.
    fn prepare(&mut self, step: usize, microbatch: usize, part: usize) -> Result<()>;

    /// The loss on the data of the last `prepare`, not yet divided by the accumulation steps.
    fn loss(&mut self) -> Result<Tensor>;

    /// True if the local gradients are known in advance, so that they need not be recorded.
    fn is_coded(&self) -> bool;
}

/// Builds the model of `spec` with the data of `rank`, on `device`.
pub fn build(
    spec: &RunSpec,
    plan: &Plan,
    rank: usize,
    device: Device,
) -> Result<Box<dyn ProbeModel>> {
    Ok(match spec.model {
        Model::Coded => Box::new(coded::CodedModel::new(spec, plan, rank, device)?),
        Model::Mlp => Box::new(mlp::MlpModel::new(spec, plan, rank, device)?),
    })
}

/// Creates a parameter: a leaf of the autograd graph that requires gradients.
fn leaf(values: &Tensor) -> Tensor {
    values.detach().copy().set_requires_grad(true)
}

fn shape(shape: &[usize]) -> Result<Vec<i64>> {
    Ok(shape.iter().map(|&size| i64::try_from(size)).collect::<Result<_, _>>()?)
}
