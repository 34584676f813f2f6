//! The context that all parts of the engine share: the run, the process groups and the recorder of this rank.

use std::rc::Rc;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::{Event, LayoutName, Phase, Point};

use super::groups::EngineGroups;
use super::partitioning::Partitioning;
use super::settings::NativeSettings;
use crate::dtype::kind_of;
use crate::recorder::{BufferPieces, BufferPlace, EventRecorder};

/// The context of the engine: the run, and this rank's process groups and recorder.
pub struct Context {
    /// The specification of the run.
    pub spec: RunSpec,
    /// The plan: the parameters, and the gradients that each parameter should get.
    pub plan: Plan,
    /// The partitioning of parameters and gradients among the ranks.
    pub partitioning: Partitioning,
    /// The numbers and dtypes that this rank computes with.
    pub settings: NativeSettings,
    /// The device that this rank computes on.
    pub device: Device,
    /// The process groups for the engine's collectives.
    pub groups: EngineGroups,
    /// The recorder of this rank's events.
    pub recorder: Rc<EventRecorder>,
}

/// The place of a backward pass in the run.
#[derive(Clone, Copy)]
pub struct Microbatch {
    /// The optimizer step, from 0.
    pub step: usize,
    /// The index of the microbatch within the step.
    pub index: usize,
    /// True in the last backward pass of the microbatch.
    pub complete: bool,
    /// True in the last backward pass of the step, which is the gradient accumulation boundary.
    pub boundary: bool,
    /// The loss scale, which is a factor of the gradients.
    pub scale: f64,
}

impl Microbatch {
    /// The place before the first backward pass.
    pub const NONE: Self = Self { step: 0, index: 0, complete: false, boundary: false, scale: 1.0 };
}

impl Context {
    /// Emits an event for the beginning of a phase.
    pub fn phase(&self, microbatch: Microbatch, phase: Phase) -> Result<()> {
        let Microbatch { step, index, .. } = microbatch;
        self.recorder.emit(Event::PhaseEntered { step, microbatch: index, phase })
    }

    /// Records gradients of a microbatch, divided by the loss scale.
    pub fn record(
        &self,
        microbatch: Microbatch,
        (point, layout): (Point, LayoutName),
        gradients: BufferPieces,
    ) -> Result<()> {
        let Microbatch { step, index, scale, .. } = microbatch;
        let at = BufferPlace { step: Some(step), microbatch: Some(index), point, layout };
        self.recorder.buffer(at, &gradients.unscaled(scale))
    }

    /// A flat tensor of zeros on this rank's device.
    pub fn zeros(&self, numel: usize, kind: Kind) -> Result<Tensor> {
        Ok(Tensor::f_zeros([i64::try_from(numel)?], (kind, self.device))?)
    }

    /// A flat tensor of zeros in the accumulation dtype, to accumulate gradients.
    pub fn gradient_buffer(&self, numel: usize) -> Result<Tensor> {
        self.zeros(numel, kind_of(self.settings.accumulation_dtype))
    }

    /// Makes a buffer of one flat `piece` per parameter, in the model's order.
    pub fn in_model_order(
        &self,
        kind: Kind,
        piece: impl Fn(usize) -> Result<Tensor>,
    ) -> Result<BufferPieces> {
        let tensors = (0..self.plan.params().len()).map(piece).collect::<Result<_>>()?;
        Ok(BufferPieces { tensors, kind, scale: 1.0 })
    }
}
