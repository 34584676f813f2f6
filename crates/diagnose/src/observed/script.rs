//! The facts about a user's script: its losses, and what it did with the gradients of its microbatches.

use std::collections::{BTreeMap, BTreeSet};

use zprobe_model::trace::{Aside, Block, Event, LossWeighed, Remarks, Trace, Transform};

/// The facts about a user's script.
#[derive(Debug, Default)]
pub struct ObservedScript<'a> {
    /// The losses by (step, rank), in the order of their backwards.
    pub losses: BTreeMap<(usize, usize), Vec<&'a LossWeighed>>,
    /// The blocks of the model that ran in forward and that no backward reached, by (step, rank).
    pub unreached: BTreeMap<(usize, usize), &'a [Block]>,
    /// The parameters whose accumulated gradients changed outside of any backward, between the backward of a
    /// microbatch and the next one, by (step, microbatch, rank).
    pub changed: BTreeMap<(usize, usize, usize), &'a [usize]>,
    /// The number of microbatches of each completed step, by (step, rank).
    pub ended: BTreeMap<(usize, usize), usize>,
    /// The microbatches whose gradients a script cleared on purpose, by (step, rank, microbatch).
    pub set_aside: BTreeMap<(usize, usize, usize), Aside>,
    /// The number of microbatches that a script gave up before a step, by (step, rank): it cleared their gradients,
    /// and no optimizer stepped.
    pub given_up: BTreeMap<(usize, usize), usize>,
    /// The microbatches after whose backward an engine transformed gradients, by (step, rank).
    pub transformed: BTreeMap<(usize, usize), BTreeMap<usize, Transform>>,
    /// The facts about the script as a whole, such as its trainer and the lines that call backward, by rank.
    pub remarks: BTreeMap<usize, &'a Remarks>,
    /// The number of records that are missing in the trace of a script's run, by rank. Runs of engines leave out
    /// records on purpose, so that these are not counted.
    pub lacking: BTreeMap<usize, u64>,
}

impl<'a> ObservedScript<'a> {
    /// Creates facts that contain only the number of missing records.
    pub(super) fn new(trace: &Trace) -> Self {
        let ranks = trace.spec.script().into_iter().flat_map(|_| 0..trace.spec.world_size);
        let lacking = ranks.map(|rank| (rank, trace.missing_of(rank)));
        Self { lacking: lacking.filter(|(_, records)| *records > 0).collect(), ..Self::default() }
    }

    /// Stores an event of a rank, if the event is about a script.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::LossWeighed(loss) => {
                self.losses.entry((loss.step, rank)).or_default().push(loss);
            }
            Event::BlocksUnreached { step, blocks } => {
                self.unreached.insert((*step, rank), blocks);
            }
            Event::GradientsChanged { step, microbatch, params } => {
                self.changed.insert((*step, *microbatch, rank), params);
            }
            Event::StepEnded { step, microbatches } => {
                self.ended.insert((*step, rank), *microbatches);
            }
            Event::MicrobatchSetAside { step, microbatch, why } => {
                self.set_aside.insert((*step, rank, *microbatch), *why);
            }
            Event::WindowGivenUp { step, microbatches } => {
                *self.given_up.entry((*step, rank)).or_default() += microbatches;
            }
            Event::GradientsTransformed { step, microbatch, how } => {
                let of_step = self.transformed.entry((*step, rank)).or_default();
                of_step.insert(*microbatch, *how);
            }
            Event::ScriptRemarked(remarks) => {
                self.remarks.insert(rank, remarks);
            }
            _ => {}
        }
    }

    /// True if all these parameters joined a model of DDP, or became trainable, after DDP had wrapped the model.
    pub fn are_late(&self, params: &[String]) -> bool {
        let is_late = |name| self.remarks.values().any(|it| it.late.contains(name));
        !params.is_empty() && params.iter().all(is_late)
    }

    /// Names the lines of the user's code that step; `None` if they were not seen.
    pub fn step_lines(&self) -> Option<String> {
        let lines = self.remarks.values().flat_map(|it| it.step_at.iter());
        let lines: BTreeSet<&str> = lines.map(String::as_str).collect();
        let lines: Vec<&str> = lines.into_iter().collect();
        (!lines.is_empty()).then(|| format!("step at {}", lines.join(", ")))
    }

    /// True if a rank takes no optimizer step, and gets the updates of another rank by broadcast.
    pub fn receives(&self, rank: usize) -> bool {
        self.remarks.get(&rank).is_some_and(|it| it.receives)
    }
}
