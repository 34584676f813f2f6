//! The facts about a user's script, sorted by topic: its losses, its clipping, its updates and its model.

use std::collections::BTreeMap;

use zprobe_model::trace::{
    Block, ClippedInVain, Event, GradientsClipped, Left, LossWeighed, OptimizerStepped,
    UpdatesRounded,
};

/// The digests of parameters that replicas have in common, as in [`Event::ParametersDigested`].
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    /// The digests, indexed by parameter; `None` where a parameter has no digest.
    pub numbers: &'a [Option<f64>],
    /// The number of the shard that each digest covers; empty if all digests cover whole parameters.
    pub shards: &'a [usize],
}

/// The facts about a user's script.
#[derive(Debug, Default)]
pub struct Script<'a> {
    /// The losses by (step, rank), in the order of their backwards.
    pub losses: BTreeMap<(usize, usize), Vec<&'a LossWeighed>>,
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
    /// The blocks that ran in forward and that no backward reached, by (step, rank).
    pub unreached: BTreeMap<(usize, usize), &'a [Block]>,
    /// The gradients of the first step that were consumed again, by (step, rank).
    pub left: BTreeMap<(usize, usize), &'a [Left]>,
    /// The parameters whose accumulated gradients changed outside of any backward, between the backward of a
    /// microbatch and the next one, by (step, microbatch, rank).
    pub changed: BTreeMap<(usize, usize, usize), &'a [usize]>,
    /// The number of microbatches of each completed step, by (step, rank).
    pub ended: BTreeMap<(usize, usize), usize>,
}

impl<'a> Script<'a> {
    /// Stores an event of a rank, if the event is about a script.
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
