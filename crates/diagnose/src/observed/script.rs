//! Facts about a user's script, sorted: its losses, its clipping, its updates, its model.

use std::collections::BTreeMap;

use zprobe_model::trace::{
    Block, ClippedInVain, Event, GradientsClipped, Left, LossWeighed, OptimizerStepped,
    UpdatesRounded,
};

/// Numbers that replicas of parameters have in common, as in [`Event::ParametersDigested`].
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    /// The numbers, by parameter index.
    pub numbers: &'a [Option<f64>],
    /// Number of the shard that each is of; empty where all are of whole parameters.
    pub shards: &'a [usize],
}

/// Facts about a user's script.
#[derive(Debug, Default)]
pub struct Script<'a> {
    /// Losses by (step, rank), a backward after the other.
    pub losses: BTreeMap<(usize, usize), Vec<&'a LossWeighed>>,
    /// Calls that clipped gradients, by (step, rank).
    pub clipped: BTreeMap<(usize, usize), Vec<&'a GradientsClipped>>,
    /// Calls that clipped gradients with which no optimizer stepped, by rank.
    pub in_vain: BTreeMap<usize, Vec<&'a ClippedInVain>>,
    /// Steps of optimizers, by (step, rank).
    pub stepped: BTreeMap<(usize, usize), Vec<&'a OptimizerStepped>>,
    /// Comparisons of half-precision parameters before and after a step, by (step, rank).
    pub rounded: BTreeMap<(usize, usize), Vec<&'a UpdatesRounded>>,
    /// Digests of parameters, by the step after which they were taken (none before the first) and rank.
    pub digests: BTreeMap<(Option<usize>, usize), Digests<'a>>,
    /// Blocks that ran and were not reached, by (step, rank).
    pub unreached: BTreeMap<(usize, usize), &'a [Block]>,
    /// Gradients of the first step that were consumed again, by (step, rank).
    pub left: BTreeMap<(usize, usize), &'a [Left]>,
    /// Parameters whose accumulated gradients changed between the backward of a microbatch and the next one, outside of
    /// both, by (step, microbatch, rank).
    pub changed: BTreeMap<(usize, usize, usize), &'a [usize]>,
    /// Numbers of microbatches of the steps that are over, by (step, rank).
    pub ended: BTreeMap<(usize, usize), usize>,
}

impl<'a> Script<'a> {
    /// Takes in an event of a rank, if it is about a script.
    pub fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::LossWeighed(loss) => {
                self.losses.entry((loss.step, rank)).or_default().push(loss);
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
            Event::BlocksUnreached { step, blocks } => {
                self.unreached.insert((*step, rank), blocks);
            }
            Event::GradientsLeft { step, params } => {
                self.left.insert((*step, rank), params);
            }
            Event::GradientsChanged { step, microbatch, params } => {
                self.changed.insert((*step, *microbatch, rank), params);
            }
            Event::StepEnded { step, microbatches } => {
                self.ended.insert((*step, rank), *microbatches);
            }
            _ => {}
        }
    }
}
