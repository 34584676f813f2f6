//! Ranks of a script that fell behind: they skipped an optimizer step that other ranks took.

use std::collections::{BTreeMap, BTreeSet};

use super::{Observed, Process};
use zprobe_model::trace::Outcome;

/// The phrases with which the error message of a rank says that another rank was unreachable.
pub const SYMPTOMS: &[&str] = &[
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "was never reached by rank",
    "Timed out waiting",
    "not every rank left",
    "the TCPStore, which rank 0 hosts, is gone",
];

impl Observed<'_> {
    /// Returns the first step that each rank of a script skipped while others took it, by rank. A rank that lost the
    /// others because they had finished their last watched step crashed for this reason only.
    pub fn behind(&self) -> BTreeMap<usize, usize> {
        let all = || self.processes.iter().enumerate();
        let over = || all().filter(|(_, process)| process.finished).map(|(rank, _)| rank);
        let left = all().filter(|(rank, process)| {
            process.finished || process.blames_a_peer() || self.is_idle(*rank, process)
        });
        left.filter_map(|(rank, _)| {
            let mut steps = over().filter_map(|other| self.first_left_out(rank, other));
            Some((rank, steps.next()?))
        })
        .collect()
    }

    /// Returns the ranks that skipped a step of some optimizer and lost the others for this reason, because these had
    /// already taken all watched steps.
    pub fn left_alone(&self) -> BTreeSet<usize> {
        let is_over = self.processes.iter().any(|process| process.finished);
        let has_idle = |rank: usize| self.remarks.get(&rank).is_some_and(|it| !it.idle.is_empty());
        let ranks = self.processes.iter().enumerate();
        let lost = ranks.filter(|(rank, it)| is_over && it.blames_a_peer() && has_idle(*rank));
        lost.map(|(rank, _)| rank).chain(self.behind().into_keys()).collect()
    }

    /// True for a rank on which no optimizer stepped, and which ended together with the ranks that finished.
    fn is_idle(&self, rank: usize, process: &Process<'_>) -> bool {
        let has_stepped = self.script.stepped.keys().any(|(_, it)| *it == rank);
        process.outcome == Some(Outcome::Unseen) && !has_stepped
    }

    /// Returns the first step that `rank` skipped and `other` took. Either all of its microbatches were given up, or
    /// all its backwards ran and the rank then lost the others.
    fn first_left_out(&self, rank: usize, other: usize) -> Option<usize> {
        let has_stepped = |step, rank| self.script.stepped.contains_key(&(step, rank));
        let went_backward =
            |step| self.microbatches(step)[rank] == self.spec.gradient_accumulation_steps;
        // Before the first step, giving up is a search for a loss scale, which may take each rank a different number
        // of tries.
        let gave_up = |step, rank| step > 0 && self.given_up.contains_key(&(step, rank));
        (0..self.spec.steps).find(|&step| {
            let process = &self.processes[rank];
            let is_idle = !process.finished
                && !process.was_cut_off()
                && !has_stepped(step, rank)
                && went_backward(step);
            has_stepped(step, other) && (is_idle || gave_up(step, rank) && !gave_up(step, other))
        })
    }
}

impl Process<'_> {
    /// True for a rank that had no chance to step: a signal ended it, or its zprobe process was lost, so that its end
    /// is unknown.
    pub fn was_cut_off(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Signal(_) | Outcome::WithLauncher(_) | Outcome::Lost))
    }

    /// True if the error message of the rank says that another rank was unreachable.
    pub fn blames_a_peer(&self) -> bool {
        self.failure.is_some_and(|failure| SYMPTOMS.iter().any(|symptom| failure.contains(symptom)))
    }
}
