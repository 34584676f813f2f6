//! Ranks of a script that are left behind: they did not step where others did.

use std::collections::BTreeMap;

use super::{Observed, Process};

impl Observed<'_> {
    /// Steps that a rank of a script did not take and that others took, by rank: the first one of each. A rank that
    /// lost the others, because they had ended after their last watched step, crashed for that reason alone.
    pub fn behind(&self) -> BTreeMap<usize, usize> {
        let all = || self.processes.iter().enumerate();
        let over = || all().filter(|(_, process)| process.finished).map(|(rank, _)| rank);
        let left = all().filter(|(_, process)| process.finished || process.blames_a_peer());
        left.filter_map(|(rank, _)| {
            let mut steps = over().filter_map(|other| self.first_left_out(rank, other));
            Some((rank, steps.next()?))
        })
        .collect()
    }

    /// The first step that a rank left out and another one took: all its backwards were given up, or are over and it
    /// has lost the others.
    fn first_left_out(&self, rank: usize, other: usize) -> Option<usize> {
        let has_stepped = |step, rank| self.script.stepped.contains_key(&(step, rank));
        let went_backward =
            |step| self.microbatches(step)[rank] == self.spec.gradient_accumulation_steps;
        let gave_up = |step, rank| self.given_up.contains_key(&(step, rank));
        (0..self.spec.steps).find(|&step| {
            let is_lost = !self.processes[rank].finished;
            let is_idle = is_lost && !has_stepped(step, rank) && went_backward(step);
            has_stepped(step, other) && (is_idle || gave_up(step, rank) && !gave_up(step, other))
        })
    }
}

impl Process<'_> {
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
