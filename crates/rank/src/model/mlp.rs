//! The dense model: `Linear(64, 64)`, GELU, `Linear(64, 64)`, mean squared error on random data.

use std::ops::Range;

use anyhow::Result;
use tch::{Device, Kind, TchError, Tensor};
use zprobe_model::spec::{Plan, RunSpec};

use super::{ProbeModel, leaf, shape};
use crate::dtype::kind_of;

const WIDTH: i64 = 64;

/// The parameters and the data of one rank.
pub struct MlpModel {
    parameters: Vec<Tensor>,
    /// The inputs and targets of all microbatches, in the order of steps and microbatches.
    batches: Vec<(Tensor, Tensor)>,
    gradient_accumulation_steps: usize,
    /// The index of the current microbatch in `batches`.
    current: usize,
}

impl MlpModel {
    /// Draws the parameters, which are the same on all ranks, and this rank's samples of each global batch. All values
    /// are drawn on the CPU, so that they do not depend on the device.
    pub fn new(spec: &RunSpec, plan: &Plan, rank: usize, device: Device) -> Result<Self> {
        let kind = kind_of(spec.dtype);
        tch::manual_seed(spec.seed.cast_signed());
        // The initial values are uniform within ±1/sqrt(fan_in), as in torch.nn.Linear.
        let bound = 1.0 / (WIDTH as f64).sqrt();
        let parameters = plan
            .params()
            .iter()
            .map(|param| {
                let values = Tensor::empty(shape(&param.shape)?, (Kind::Float, Device::Cpu))
                    .uniform_(-bound, bound);
                Ok(leaf(&values.to_kind(kind).to_device(device)))
            })
            .collect::<Result<_>>()?;
        let batches = (0..spec.steps)
            .flat_map(|step| (0..spec.gradient_accumulation_steps).map(move |m| (step, m)))
            .map(|(step, microbatch)| {
                let (inputs, targets) = batch(spec, spec.samples(step, rank, microbatch))?;
                let ready = |values: Tensor| values.to_kind(kind).to_device(device);
                Ok((ready(inputs), ready(targets)))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            parameters,
            batches,
            gradient_accumulation_steps: spec.gradient_accumulation_steps,
            current: 0,
        })
    }
}

/// The inputs and targets of these samples of the run, in fp32. Each sample has its own seed, so that the data do not
/// depend on how the global batch is split.
fn batch(spec: &RunSpec, samples: Range<usize>) -> Result<(Tensor, Tensor), TchError> {
    let (inputs, targets): (Vec<Tensor>, Vec<Tensor>) = samples
        .map(|sample| {
            tch::manual_seed(spec.sample_seed(sample).cast_signed());
            let draw = || Tensor::randn([WIDTH], (Kind::Float, Device::Cpu));
            (draw(), draw())
        })
        .unzip();
    Ok((Tensor::f_stack(&inputs, 0)?, Tensor::f_stack(&targets, 0)?))
}

impl ProbeModel for MlpModel {
    fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }

    fn parts(&self, _step: usize, _microbatch: usize) -> usize {
        1
    }

    fn prepare(&mut self, step: usize, microbatch: usize, _part: usize) -> Result<()> {
        self.current = step * self.gradient_accumulation_steps + microbatch;
        Ok(())
    }

    fn loss(&mut self) -> Result<Tensor> {
        let (input, target) = &self.batches[self.current];
        let linear = |x: &Tensor, layer: usize| {
            x.linear(&self.parameters[2 * layer], Some(&self.parameters[2 * layer + 1]))
        };
        let output = linear(&linear(input, 0).gelu("none"), 1);
        Ok(output.mse_loss(target, tch::Reduction::Mean))
    }

    fn is_coded(&self) -> bool {
        false
    }
}
