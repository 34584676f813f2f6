//! The facts about optimizer steps: loss scale, norm, clipping, and the parameters before and after a step.

use std::collections::BTreeMap;

use zprobe_model::trace::{
    ClippedInVain, Differing, Event, GradientsClipped, Left, OptimizerStepped, StateCompared,
    UpdatesRounded,
};

/// The facts about the optimizer steps of all ranks.
#[derive(Debug, Default)]
pub struct Updates<'a> {
    /// The loss scale of each step, by (step, rank).
    pub scaled: BTreeMap<(usize, usize), Scaled>,
    /// The microbatches of a step after which the engine called an optimizer, by (step, rank).
    pub called: BTreeMap<(usize, usize), &'a [usize]>,
    /// The parameters whose value in forward differed from their value after the previous step, by (step, microbatch,
    /// rank).
    pub forward: BTreeMap<(usize, usize, usize), &'a [Differing]>,
    /// The parameters whose value in backward differed from their value after the previous step, by (step, microbatch,
    /// rank).
    pub backward: BTreeMap<(usize, usize, usize), &'a [Differing]>,
    /// The factor by which the script multiplied all parameters after a step, by (step, rank).
    pub multiplied: BTreeMap<(usize, usize), f64>,
    /// The parameters that a step left unchanged although an optimizer had their gradients, by (step, rank).
    pub unmoved: BTreeMap<(usize, usize), &'a [usize]>,
    /// The global norms of the gradient that the engine computed, by (step, rank).
    pub norms: BTreeMap<(usize, usize), ReportedNorm>,
    /// The calls that clipped gradients, by (step, rank).
    pub clipped: BTreeMap<(usize, usize), Vec<&'a GradientsClipped>>,
    /// The calls that clipped gradients without any effect on an optimizer step, by rank.
    pub in_vain: BTreeMap<usize, Vec<&'a ClippedInVain>>,
    /// The steps of optimizers, by (step, rank).
    pub stepped: BTreeMap<(usize, usize), Vec<&'a OptimizerStepped>>,
    /// The comparisons of half-precision parameters before and after a step, by (step, rank).
    pub rounded: BTreeMap<(usize, usize), Vec<&'a UpdatesRounded>>,
    /// The digests of parameters, by (step, rank), taken after the step; the step is `None` for digests before the
    /// first step.
    pub digests: BTreeMap<(Option<usize>, usize), Digests<'a>>,
    /// The comparisons of the training state before and after a checkpoint, by (step that follows, rank).
    pub loaded: BTreeMap<(usize, usize), &'a [StateCompared]>,
    /// The gradients of the first step that a later step consumed once more, by that (step, rank).
    pub left: BTreeMap<(usize, usize), &'a [Left]>,
}

/// The loss scale with which one rank took a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    /// The loss scale.
    pub scale: f64,
    /// True if the rank saw an overflow and skipped the step.
    pub overflow: bool,
}

/// The global norm of a step's gradient before clipping, as one rank's engine computed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportedNorm {
    /// The norm; `None` if it is not finite.
    pub norm: Option<f64>,
    /// The norm to which the engine clips; 0 for no clipping.
    pub limit: f64,
}

/// The digests of parameters that replicas have in common, as in [`Event::ParametersDigested`].
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    /// The digests, indexed by parameter; `None` where a parameter has no digest.
    pub numbers: &'a [Option<f64>],
    /// The number of the shard that each digest covers; empty if all digests cover whole parameters.
    pub shards: &'a [usize],
}

impl<'a> Updates<'a> {
    /// Stores an event of a rank, if the event is about an optimizer step.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::LossScaled { step, scale, overflow } => {
                let scaled = Scaled { scale: *scale, overflow: *overflow };
                self.scaled.insert((*step, rank), scaled);
            }
            Event::OptimizerCalled { step, microbatches } => {
                self.called.insert((*step, rank), microbatches);
            }
            Event::ForwardUsed { step, microbatch, differing } => {
                // A microbatch may go forward in several parts.
                let known = self.forward.entry((*step, *microbatch, rank)).or_insert(differing);
                if known.is_empty() {
                    *known = differing;
                }
            }
            Event::BackwardUsed { step, microbatch, differing } => {
                self.backward.entry((*step, *microbatch, rank)).or_insert(differing);
            }
            Event::ParametersMultiplied { step, factor } => {
                self.multiplied.insert((*step, rank), *factor);
            }
            Event::ParametersUnmoved { step, params } => {
                self.unmoved.insert((*step, rank), params);
            }
            Event::GradientNorm { step, norm, limit } => {
                self.norms.insert((*step, rank), ReportedNorm { norm: *norm, limit: *limit });
            }
            Event::GradientsClipped(call) => {
                self.clipped.entry((call.step, rank)).or_default().push(call);
            }
            Event::ClippedInVain(call) => {
                self.in_vain.entry(rank).or_default().push(call);
            }
            Event::OptimizerStepped(step) => {
                self.stepped.entry((step.step, rank)).or_default().push(step);
            }
            Event::UpdatesRounded(rounded) => {
                self.rounded.entry((rounded.step, rank)).or_default().push(rounded);
            }
            Event::ParametersDigested { step, digests, shards } => {
                self.digests.insert((*step, rank), Digests { numbers: digests, shards });
            }
            Event::CheckpointLoaded { step, states } => {
                self.loaded.insert((*step, rank), states);
            }
            Event::GradientsLeft { step, params } => {
                self.left.insert((*step, rank), params);
            }
            _ => {}
        }
    }

    /// True if a rank's engine reported an overflow in a step and skipped the step.
    pub fn skipped(&self, step: usize, rank: usize) -> bool {
        self.scaled.get(&(step, rank)).is_some_and(|scaled| scaled.overflow)
    }
}
