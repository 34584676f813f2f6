//! The states of all ranks of a run: step, microbatch and phase of each rank.

use std::collections::BTreeMap;

use zprobe_model::spec::{MOST_RANKS, RunSpec};
use zprobe_model::trace::{Event, Outcome, Phase, Record};
use zprobe_report::words::counted;

/// The states of all ranks of a run: how far each rank has come.
pub struct RankStates {
    ranks: Vec<RankState>,
    /// The number of steps that every rank has completed.
    steps_done: usize,
    /// The module whose import a host, or a rank that is not ready, began last; `None` if no import is going on.
    importing: Option<String>,
}

/// The state of a rank: its step, microbatch and phase.
#[derive(Clone, Default)]
struct RankState {
    is_ready: bool,
    at: Option<(usize, usize, Phase)>,
    in_collective: bool,
    backwards: u64,
    has_finished: bool,
}

impl RankStates {
    /// The states before the first record of any rank.
    pub fn new(spec: &RunSpec) -> Self {
        Self { ranks: vec![RankState::default(); spec.world_size], steps_done: 0, importing: None }
    }

    /// Updates the states with a record, and returns a line for the log if the record is a milestone.
    pub fn see(&mut self, record: &Record) -> Option<String> {
        match (&record.event, record.rank) {
            (Event::TimedOut { silent, timeout_s, waiting }, None) => {
                let waiting: Vec<usize> = waiting.iter().map(|it| it.rank).collect();
                let wait = match waiting[..] {
                    [] => String::new(),
                    [_] => format!("; {} waits", counted("rank", &waiting)),
                    _ => format!("; {} wait", counted("rank", &waiting)),
                };
                Some(format!("no event for {timeout_s} s: {}{wait}", counted("rank", silent)))
            }
            (Event::AgentLost { agent, machine, .. }, None) => {
                Some(format!("{machine}: zprobe agent {agent} is lost"))
            }
            (Event::RankExited { rank, outcome: Outcome::Signal(signal) }, None) => {
                Some(format!("rank {rank}: ended by signal {signal}"))
            }
            (Event::RankExited { rank, outcome: Outcome::Code(code) }, None) if *code != 0 => {
                Some(format!("rank {rank}: ended with exit code {code}"))
            }
            (Event::Importing { what }, _) => {
                // Ranks without a host all import the same module, but the log gets only one line.
                let is_new = self.importing.as_ref() != Some(what);
                self.importing = Some(what.clone());
                is_new.then(|| format!("importing {what}"))
            }
            (Event::RankSpawned { .. }, None) => {
                self.importing = None;
                None
            }
            (event, Some(rank)) => {
                if let Event::RankJoined { world_size, .. } = event {
                    let ranks = (*world_size).min(MOST_RANKS).max(self.ranks.len());
                    self.ranks.resize(ranks, RankState::default());
                }
                self.of_rank(self.ranks.get(rank).is_some().then_some(rank)?, event)
            }
            _ => None,
        }
    }

    fn of_rank(&mut self, number: usize, event: &Event) -> Option<String> {
        let rank = &mut self.ranks[number];
        rank.in_collective = matches!(event, Event::CollectiveEntered { .. });
        match event {
            Event::RankReady { .. } => {
                rank.is_ready = true;
                let all = self.ranks.iter().all(|rank| rank.is_ready);
                self.importing.take_if(|_| all);
                all.then(|| format!("{} ready", self.count()))
            }
            Event::PhaseEntered { step, microbatch, phase } => {
                rank.at = Some((*step, *microbatch, *phase));
                rank.backwards += u64::from(*phase == Phase::Backward);
                self.step_done()
            }
            Event::Finished => {
                rank.has_finished = true;
                self.step_done()
            }
            Event::Failed { message } => Some(format!("rank {number}: {message}")),
            _ => None,
        }
    }

    /// Counts a step that all ranks have completed, and returns a line about the step.
    fn step_done(&mut self) -> Option<String> {
        let done = |rank: &RankState| match rank.at {
            Some((step, ..)) => step + usize::from(rank.has_finished),
            None => 0,
        };
        let least = self.ranks.iter().map(done).min()?;
        if least <= self.steps_done {
            return None;
        }
        self.steps_done = least;
        Some(format!("step {} done", least - 1))
    }

    fn count(&self) -> String {
        zprobe_report::words::amount(self.ranks.len(), "rank")
    }

    /// The number of backward passes that every rank has begun.
    pub fn done(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.backwards).min().unwrap_or(0)
    }

    /// The current state of the whole run, in words.
    pub fn headline(&self) -> String {
        match &self.importing {
            Some(what) => format!("importing {what}"),
            None if self.ranks.iter().any(|rank| !rank.is_ready) => "starting ranks".to_owned(),
            None => "backwards".to_owned(),
        }
    }

    /// The current position of a rank, in words.
    pub fn words(&self, number: usize) -> String {
        let Some(rank) = self.ranks.get(number) else { return String::new() };
        let collective = if rank.in_collective { ", in a collective" } else { "" };
        match rank.at {
            _ if rank.has_finished => "finished".to_owned(),
            Some((step, microbatch, phase)) => {
                format!("step {step}, microbatch {microbatch}: {phase}{collective}")
            }
            None if rank.is_ready => "ready".to_owned(),
            None => "starting".to_owned(),
        }
    }

    /// The number of ranks in each phase, the largest number first: `500 reduce, 12 backward`.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for rank in &self.ranks {
            let what = match rank.at {
                _ if rank.has_finished => "finished",
                Some((_, _, phase)) => phase.name(),
                None if rank.is_ready => "ready",
                None => "starting",
            };
            *counts.entry(what).or_default() += 1;
        }
        let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let texts: Vec<String> =
            counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        texts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zprobe_model::trace::Trace;

    use super::*;

    /// The log lines of a recorded run, and the final status of its ranks.
    fn log(name: &str) -> (Vec<String>, RankStates) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/traces");
        let trace = Trace::read(&root.join(name)).unwrap();
        let mut states = RankStates::new(&trace.spec);
        let lines = trace.records.iter().filter_map(|record| states.see(record)).collect();
        (lines, states)
    }

    #[test]
    fn a_log_has_a_line_for_each_step_that_all_ranks_have_done() {
        let (lines, states) = log("clean-three-ranks");
        assert_eq!(lines, ["3 ranks ready", "step 0 done", "step 1 done"]);
        assert_eq!(states.done(), 6, "2 steps of 3 microbatches");
        assert_eq!(states.summary(), "3 finished");
    }

    #[test]
    fn an_import_has_a_line_once_and_is_over_when_ranks_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/traces");
        let trace = Trace::read(&root.join("clean-three-ranks")).unwrap();
        let mut states = RankStates::new(&trace.spec);
        let record = |rank, event| Record { rank, event, ..trace.records[0].clone() };
        let importing = |rank| record(rank, Event::Importing { what: "deepspeed".to_owned() });
        assert_eq!(states.see(&importing(None)).as_deref(), Some("importing deepspeed"));
        assert_eq!(states.see(&importing(Some(1))), None, "a rank imports the same");
        assert_eq!(states.headline(), "importing deepspeed");
        states.see(&record(None, Event::RankSpawned { rank: 0, pid: 7, agent: None }));
        assert_eq!(states.headline(), "starting ranks");
        for rank in 0..3 {
            let versions = Default::default();
            states
                .see(&record(Some(rank), Event::RankReady { versions, device: "cpu".to_owned() }));
        }
        assert_eq!(states.headline(), "backwards");
    }

    #[test]
    fn a_log_says_which_ranks_are_silent_and_where_they_are() {
        let (lines, states) = log("rank-hangs");
        assert_eq!(lines, ["2 ranks ready", "no event for 2 s: ranks 0 and 1"]);
        assert_eq!(states.words(0), "step 0, microbatch 1: reduce, in a collective");
        assert_eq!(states.words(1), "step 0, microbatch 1: forward");
        assert_eq!(states.summary(), "1 forward, 1 reduce");
    }
}
