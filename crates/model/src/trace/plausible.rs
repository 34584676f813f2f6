//! Checks that an event is possible in a given run. The diagnosis uses the numbers in events as indices, so the
//! launcher and the reader of a trace refuse events with numbers outside the run.

use super::{
    ClippedInVain, Event, GradientsClipped, LossWeighed, OptimizerStepped, Payload, UpdatesRounded,
};
use crate::spec::{MOST_RANKS, RunSpec, plan::Segment};

/// The largest number of elements that a model may have: far above any real model, and far below any overflow.
const MOST_ELEMENTS: usize = 1 << 40;

/// The largest number of steps for which a script is watched, and the largest number of microbatches of a step.
const MOST_STEPS: usize = 1 << 16;

impl Event {
    /// Checks that the event fits a run of `spec`.
    ///
    /// # Errors
    /// Returns a phrase that describes the mismatch.
    pub fn fits(&self, spec: &RunSpec) -> Result<(), String> {
        let (step, microbatch) = self.moment();
        if let Some(step) = step.filter(|step| *step >= spec.steps) {
            return Err(format!("step {step} of a run of {} steps", spec.steps));
        }
        let ga = spec.gradient_accumulation_steps;
        if let Some(microbatch) = microbatch.filter(|microbatch| *microbatch >= ga) {
            return Err(format!("microbatch {microbatch} of a step of {ga} microbatches"));
        }
        match self {
            Event::Buffer { payload, .. } => fits_payload(payload),
            Event::Layout { segments, .. } => fits_segments(segments),
            Event::HooksFired { fired, arrived, .. } => {
                fits_counts(fired)?;
                arrived.as_deref().map_or(Ok(()), fits_counts)
            }
            Event::Model { params } => total(params.iter().map(|param| {
                param.shape.iter().try_fold(1, |size: usize, side| size.checked_mul(*side))
            })),
            _ => Ok(()),
        }
    }

    /// Checks that the event fits a run of a script whose specification is not known yet.
    ///
    /// # Errors
    /// Returns a phrase that describes the mismatch.
    pub fn fits_script(&self) -> Result<(), String> {
        let (step, microbatch) = self.moment();
        if let Some(number) = [step, microbatch].into_iter().flatten().find(|it| *it >= MOST_STEPS)
        {
            return Err(format!("step or microbatch {number} is out of range"));
        }
        match self {
            Event::RankJoined { world_size, .. } if !(1..=MOST_RANKS).contains(world_size) => {
                Err(format!("the run cannot have {world_size} ranks"))
            }
            Event::RanksAgreed { microbatches, reserved, .. }
                if *microbatches.max(reserved) > MOST_STEPS =>
            {
                Err(format!("too many microbatches or codes: {microbatches} and {reserved}"))
            }
            Event::RankSpawned { rank, .. } | Event::RankExited { rank, .. }
                if *rank >= MOST_RANKS =>
            {
                Err(format!("rank {rank} is out of range"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the step and the microbatch that the event is about.
    pub fn moment(&self) -> (Option<usize>, Option<usize>) {
        match *self {
            Event::PhaseEntered { step, microbatch, .. }
            | Event::Loss { step, microbatch, .. }
            | Event::MicrobatchSetAside { step, microbatch, .. }
            | Event::GradientsTransformed { step, microbatch, .. }
            | Event::GradientsChanged { step, microbatch, .. }
            | Event::GraphWalked { step, microbatch, .. }
            | Event::HooksFired { step, microbatch, .. }
            | Event::ForwardUsed { step, microbatch, .. }
            | Event::BackwardUsed { step, microbatch, .. }
            | Event::BackwardEnded { step, microbatch }
            | Event::BucketFlushed { step, microbatch, .. } => (Some(step), Some(microbatch)),
            Event::LossWeighed(LossWeighed { step, microbatch, .. }) => {
                (Some(step), Some(microbatch))
            }
            Event::GradientsClipped(GradientsClipped { step, .. })
            | Event::ClippedInVain(ClippedInVain { step, .. })
            | Event::OptimizerStepped(OptimizerStepped { step, .. })
            | Event::UpdatesRounded(UpdatesRounded { step, .. }) => (Some(step), None),
            Event::Buffer { step, microbatch, .. } => (step, microbatch),
            Event::ParametersDigested { step, .. } => (step, None),
            Event::DigestsGathered { step, .. }
            | Event::LossScaled { step, .. }
            | Event::OptimizerCalled { step, .. }
            | Event::ParametersMultiplied { step, .. }
            | Event::ParametersUnmoved { step, .. }
            | Event::CheckpointLoaded { step, .. }
            | Event::WindowGivenUp { step, .. }
            | Event::BlocksUnreached { step, .. }
            | Event::GradientsLeft { step, .. }
            | Event::StepEnded { step, .. }
            | Event::StepTaken { step, .. }
            | Event::StepTimed { step, .. }
            | Event::GradientNorm { step, .. } => (Some(step), None),
            _ => (None, None),
        }
    }
}

fn fits_payload(payload: &Payload) -> Result<(), String> {
    if !payload.has_content() && payload.numel <= MOST_ELEMENTS {
        return Ok(());
    }
    // Base64 needs four characters for three bytes.
    let room = payload.data.len() / 4 * 3;
    match payload.numel.checked_mul(payload.dtype.size()) {
        Some(bytes) if bytes <= room => Ok(()),
        _ => Err(format!("{} elements in a buffer of {room} bytes", payload.numel)),
    }
}

/// Checks that the sum of the counts does not overflow.
fn fits_counts(counts: &[u32]) -> Result<(), String> {
    let sum = counts.iter().try_fold(0, |sum: u32, count| sum.checked_add(*count));
    sum.map(drop).ok_or_else(|| "more gradients than any backward delivers".to_owned())
}

fn fits_segments(segments: &[Segment]) -> Result<(), String> {
    total(segments.iter().map(|segment| {
        segment.offset.checked_add(segment.len).filter(|end| *end <= MOST_ELEMENTS)?;
        Some(segment.len)
    }))
}

/// Checks that all sizes are positive, and that their sum is at most [`MOST_ELEMENTS`].
fn total(sizes: impl Iterator<Item = Option<usize>>) -> Result<(), String> {
    let mut sum: usize = 0;
    for size in sizes {
        match size.filter(|size| *size > 0).and_then(|size| sum.checked_add(size)) {
            Some(next) if next <= MOST_ELEMENTS => sum = next,
            _ => return Err("a size of 0, or more elements than any model has".to_owned()),
        }
    }
    Ok(())
}
