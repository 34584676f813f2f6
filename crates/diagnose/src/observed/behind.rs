//! Ranks of a script that fell behind: they skipped an optimizer step that other ranks took.

use std::collections::{BTreeMap, BTreeSet};

use super::{Observed, RankProcess, TimedOut};
use zprobe_model::trace::{Event, Outcome, Phase};

impl Observed<'_> {
    /// Returns, for each rank of a script that skipped a step that others took, the first such step. If the others
    /// finished without the rank, a crash of the rank is only a consequence of the skipped step.
    pub fn behind(&self) -> BTreeMap<usize, usize> {
        let all = || self.processes.ranks.iter().enumerate();
        let over = || all().filter(|(_, process)| process.finished).map(|(rank, _)| rank);
        let left = all().filter(|(rank, process)| {
            process.finished
                || process.blames_a_peer()
                || self.is_idle(*rank, process)
                || self.was_silent(*rank)
        });
        left.filter_map(|(rank, _)| {
            let mut steps = over().filter_map(|other| self.first_left_out(rank, other));
            Some((rank, steps.next()?))
        })
        .collect()
    }

    /// Returns the ranks that lost the connection to the other ranks only because these had taken all watched steps and
    /// were gone: ranks that skipped a step of some optimizer, and ranks that wait after their last step, as in DDP's
    /// `join`.
    pub fn left_alone(&self) -> BTreeSet<usize> {
        let ranks = || self.processes.ranks.iter().enumerate();
        let is_over = ranks().any(|(_, process)| process.finished);
        let watched = self.spec.script().map(|script| script.watched_steps());
        let some_left =
            ranks().any(|(rank, it)| it.finished && Some(self.steps_of(rank)) == watched);
        let has_idle =
            |rank: usize| self.script.remarks.get(&rank).is_some_and(|it| !it.idle.is_empty());
        // After its last optimizer step, a rank is in the forward of the next step.
        let waits = |it: &RankProcess<'_>| {
            matches!(it.last_phase, Some(Event::PhaseEntered { phase: Phase::Forward, .. }))
        };
        let lost = ranks().filter(|(_, process)| process.blames_a_peer());
        let lost = lost
            .filter(|(rank, process)| is_over && has_idle(*rank) || some_left && waits(process));
        lost.map(|(rank, _)| rank).chain(self.behind().into_keys()).collect()
    }

    /// Returns the number of steps of a script that a rank took.
    pub fn steps_of(&self, rank: usize) -> usize {
        let is_taken = |step: &usize| {
            let moment = (*step, rank);
            self.updates.stepped.contains_key(&moment) || self.script.ended.contains_key(&moment)
        };
        (0..self.spec.steps).filter(is_taken).count()
    }

    /// True for a rank of a script that was silent when the time limit passed.
    fn was_silent(&self, rank: usize) -> bool {
        let is_named = |it: &TimedOut| it.named.iter().any(|(named, _)| *named == rank);
        self.spec.script().is_some() && self.processes.timed_out.as_ref().is_some_and(is_named)
    }

    /// True for a rank on which no optimizer stepped, and which ended together with the ranks that finished.
    fn is_idle(&self, rank: usize, process: &RankProcess<'_>) -> bool {
        let has_stepped = self.updates.stepped.keys().any(|(_, it)| *it == rank);
        process.outcome == Some(Outcome::Unseen) && !has_stepped
    }

    /// Returns the first step that `rank` skipped and `other` took. Either all of its microbatches were given up, or
    /// all its backwards ran and the rank then lost the others. A silent rank may hang before its optimizer's step.
    fn first_left_out(&self, rank: usize, other: usize) -> Option<usize> {
        let has_stepped = |step, rank| self.updates.stepped.contains_key(&(step, rank));
        let went_backward =
            |step| self.microbatches(step)[rank] == self.spec.gradient_accumulation_steps;
        // Before the first step, giving up is a search for a loss scale, which may take each rank a different number
        // of tries.
        let gave_up = |step, rank| step > 0 && self.script.given_up.contains_key(&(step, rank));
        (0..self.spec.steps).find(|&step| {
            let process = &self.processes.ranks[rank];
            let is_idle = !process.finished
                && !process.was_cut_off()
                && !self.was_silent(rank)
                && !has_stepped(step, rank)
                && went_backward(step);
            has_stepped(step, other) && (is_idle || gave_up(step, rank) && !gave_up(step, other))
        })
    }
}
