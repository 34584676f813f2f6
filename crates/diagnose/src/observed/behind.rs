//! Ranks of a script that are left behind: they did not step where others did.

use std::collections::{BTreeMap, BTreeSet};

use super::{Observed, Process};
use zprobe_model::trace::Outcome;

impl Observed<'_> {
    /// Steps that a rank of a script did not take and that others took, by rank: the first one of each. A rank that
    /// lost the others, because they had ended after their last watched step, crashed for that reason alone.
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

    /// Ranks that left out a step of all or of one of their optimizers, and lost the others for that reason: these had
    /// taken all steps that were watched.
    pub fn left_alone(&self) -> BTreeSet<usize> {
        let is_over = self.processes.iter().any(|process| process.finished);
        let has_idle = |rank: usize| self.remarks.get(&rank).is_some_and(|it| !it.idle.is_empty());
        let ranks = self.processes.iter().enumerate();
        let lost = ranks.filter(|(rank, it)| is_over && it.blames_a_peer() && has_idle(*rank));
        lost.map(|(rank, _)| rank).chain(self.behind().into_keys()).collect()
    }

    /// True for a rank that no optimizer stepped on, and that was ended together with those that finished.
    fn is_idle(&self, rank: usize, process: &Process<'_>) -> bool {
        let has_stepped = self.script.stepped.keys().any(|(_, it)| *it == rank);
        process.outcome == Some(Outcome::Unseen) && !has_stepped
    }

    /// The first step that a rank left out and another one took: all its backwards were given up, or are over and it
    /// has lost the others.
    fn first_left_out(&self, rank: usize, other: usize) -> Option<usize> {
        let has_stepped = |step, rank| self.script.stepped.contains_key(&(step, rank));
        let went_backward =
            |step| self.microbatches(step)[rank] == self.spec.gradient_accumulation_steps;
        // Before the first step it is a search for a loss scale, which may take each rank another time.
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
    /// True for a rank that had no chance to step: a signal ended it, or its zprobe was lost, so that nobody knows.
    pub fn was_cut_off(&self) -> bool {
        matches!(self.outcome, Some(Outcome::Signal(_) | Outcome::WithLauncher(_) | Outcome::Lost))
    }

    /// True if the failure that it gave an account of is that another rank was not there.
    pub fn blames_a_peer(&self) -> bool {
        const SYMPTOMS: &[&str] = &[
            "Connection closed by peer",
            "Connection reset by peer",
            "Broken pipe",
            "was never reached by rank",
            "Timed out waiting",
            "not every rank left",
            "the TCPStore, which rank 0 hosts, is gone",
        ];
        self.failure.is_some_and(|failure| SYMPTOMS.iter().any(|symptom| failure.contains(symptom)))
    }
}
