//! The context that all parts of the engine share: the run and this rank's connections.

use std::rc::Rc;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::{Event, LayoutName, Phase, Point};

use super::groups::Groups;
use super::partitioning::Partitioning;
use super::settings::Settings;
use crate::dtype::kind_of;
use crate::recorder::{At, Pieces, Recorder};

/// The run, and this rank's connections.
pub struct Context {
    /// The specification of the run.
    pub spec: RunSpec,
    /// The parameters, and the gradients that should reach them.
    pub plan: Plan,
    /// The owners of parameters and gradients.
    pub partitioning: Partitioning,
    /// The numbers and dtypes that this rank computes with.
    pub settings: Settings,
    /// The device that this rank computes on.
    pub device: Device,
    /// The process groups.
    pub groups: Groups,
    /// The trace.
    pub recorder: Rc<Recorder>,
}

/// A backward's place in the run.
#[derive(Clone, Copy)]
pub struct Microbatch {
    /// Optimizer step.
    pub step: usize,
    /// Number of the microbatch within the step.
    pub index: usize,
    /// True if no other backward of this microbatch follows.
    pub complete: bool,
    /// True in the step's last backward: the gradient accumulation boundary.
    pub boundary: bool,
    /// The loss scale, which the gradients carry.
    pub scale: f64,
}

impl Microbatch {
    /// The place before the first backward.
    pub const NONE: Self = Self { step: 0, index: 0, complete: false, boundary: false, scale: 1.0 };
}

impl Context {
    /// Emits the beginning of a phase.
    pub fn phase(&self, microbatch: Microbatch, phase: Phase) -> Result<()> {
        let Microbatch { step, index, .. } = microbatch;
        self.recorder.emit(Event::PhaseEntered { step, microbatch: index, phase })
    }

    /// Records gradients of a microbatch, without the loss scale.
    pub fn record(
        &self,
        microbatch: Microbatch,
        (point, layout): (Point, LayoutName),
        gradients: Pieces,
    ) -> Result<()> {
        let Microbatch { step, index, scale, .. } = microbatch;
        let at = At { step: Some(step), microbatch: Some(index), point, layout };
        self.recorder.buffer(at, &gradients.unscaled(scale))
    }

    /// Zeros on this rank's device.
    pub fn zeros(&self, numel: usize, kind: Kind) -> Result<Tensor> {
        Ok(Tensor::f_zeros([i64::try_from(numel)?], (kind, self.device))?)
    }

    /// Zeros in which gradients are added up.
    pub fn gradient_buffer(&self, numel: usize) -> Result<Tensor> {
        self.zeros(numel, kind_of(self.settings.accumulation_dtype))
    }

    /// Flat pieces, one for each parameter, in the model's order.
    pub fn in_model_order(
        &self,
        kind: Kind,
        piece: impl Fn(usize) -> Result<Tensor>,
    ) -> Result<Pieces> {
        let tensors = (0..self.plan.params().len()).map(piece).collect::<Result<_>>()?;
        Ok(Pieces { tensors, kind, scale: 1.0 })
    }
}
