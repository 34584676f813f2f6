//! Faults of the optimizer step: the step keeps the loss scale, clips twice, or leaves out the update or the
//! all-gather.

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::Injected;
use crate::engine::clip::{Clip, MaxNorm};
use crate::engine::inner::{ParameterGroups, UpdateRule};
use crate::engine::parameters::{ModelWeights, Parameters};
use crate::engine::scaler::{LossScaler, Scaler};

/// The loss scaler for the engine, faulty if `fault` affects it.
pub fn scaler(fault: Injected, sound: LossScaler) -> Box<dyn Scaler> {
    match fault {
        Some(Fault::LossScaleKept) => Box::new(ScaleKept(sound)),
        _ => Box::new(sound),
    }
}

/// A loss scaler that never unscales the gradient.
struct ScaleKept(LossScaler);

impl Scaler for ScaleKept {
    fn scale(&self) -> f64 {
        self.0.scale()
    }

    fn unscale(&self, _gradient: &mut Tensor) -> Result<()> {
        Ok(())
    }

    fn update(&mut self, overflow: bool) {
        self.0.update(overflow);
    }
}

/// The gradient clipping for the engine, faulty if `fault` affects it.
pub fn clip(fault: Injected, sound: MaxNorm) -> Box<dyn Clip> {
    match fault {
        Some(Fault::ClippedTwice) => Box::new(ClippedTwice(sound)),
        _ => Box::new(sound),
    }
}

/// A gradient clipping that scales the gradient twice, by the same norm.
struct ClippedTwice(MaxNorm);

impl Clip for ClippedTwice {
    fn clip(&self, gradient: &mut Tensor, norm: f64) -> Result<()> {
        self.0.clip(gradient, norm)?;
        self.0.clip(gradient, norm)
    }
}

/// The inner optimizers for the engine, faulty if `fault` affects them.
pub fn update(fault: Injected, sound: ParameterGroups) -> Box<dyn UpdateRule> {
    match fault {
        Some(Fault::StepSkipped) => Box::new(UpdateSkipped),
        _ => Box::new(sound),
    }
}

/// An update that does nothing.
struct UpdateSkipped;

impl UpdateRule for UpdateSkipped {
    fn step(&mut self, _gradient: &Tensor, _step: usize) -> Result<()> {
        Ok(())
    }
}

/// The parameters for the engine, faulty if `fault` affects them. `params` are the model's tensors.
pub fn weights(fault: Injected, sound: Parameters, params: &[Tensor]) -> Box<dyn ModelWeights> {
    match fault {
        Some(Fault::StaleAllGather) => {
            let stale = sound.own().copy();
            Box::new(ParametersUpdated(sound, move |sound: &mut Parameters, _: &Tensor| {
                sound.update(&stale)
            }))
        }
        Some(Fault::UpdateNotCopied) => {
            let params: Vec<Tensor> = params.iter().map(Tensor::detach).collect();
            Box::new(ParametersUpdated(sound, move |sound: &mut Parameters, master: &Tensor| {
                undone(sound, master, &params)
            }))
        }
        _ => Box::new(sound),
    }
}

/// Updates the parameters, and then restores the model's former values.
fn undone(sound: &mut Parameters, master: &Tensor, params: &[Tensor]) -> Result<()> {
    let before: Vec<Tensor> = params.iter().map(Tensor::copy).collect();
    sound.update(master)?;
    for (param, before) in params.iter().zip(before) {
        param.shallow_clone().f_copy_(&before)?;
    }
    Ok(())
}

/// Parameters with a faulty function in place of the update.
struct ParametersUpdated<U>(Parameters, U);

impl<U: FnMut(&mut Parameters, &Tensor) -> Result<()>> ModelWeights for ParametersUpdated<U> {
    fn gather(&mut self) -> Result<()> {
        self.0.gather()
    }

    fn release(&mut self) -> Result<()> {
        self.0.release()
    }

    fn update(&mut self, master: &Tensor) -> Result<()> {
        (self.1)(&mut self.0, master)
    }

    fn record(&mut self, step: Option<usize>) -> Result<()> {
        self.0.record(step)
    }
}
