//! The trace and the state of each rank, while a run is in progress.

use std::path::Path;
use std::time::Instant;

use super::line_checker::{ChannelOwner, LineChecker, excerpt};
use super::rank_report::RankReport;
use super::ranks::FinalState;
use super::trace_writer::{TraceWriter, now_ns};
use super::watchdog::Watchdog;
use super::{LaunchError, RunIdentity};
use zprobe_model::spec::MOST_RANKS;
use zprobe_model::trace::{Event, Outcome, REST_OF_SCRIPT, Violation};

/// The trace of a run, which is still being written, and the state of its ranks.
pub(super) struct RunState<'a> {
    run: RunIdentity<'a>,
    trace: TraceWriter<'a>,
    pub(super) watchdog: Watchdog,
    ranks: Vec<RankState>,
    is_violated: bool,
}

struct RankState {
    /// The checker of the rank's lines; `None` after a line that was not a valid record of the rank.
    checker: Option<LineChecker>,
    finished: bool,
    outcome: Option<Outcome>,
    /// The agent whose command has started the rank, or `Some(None)` in a run without agents; `None` before the rank
    /// is known.
    agent: Option<Option<usize>>,
}

impl<'a> RunState<'a> {
    /// Starts the trace and the rank states of a run whose ranks have been started.
    pub(super) fn open(run: RunIdentity<'a>, trace: TraceWriter<'a>, watchdog: Watchdog) -> Self {
        let mut run_state = Self { run, trace, watchdog, ranks: Vec::new(), is_violated: false };
        run_state.grow(run.spec.world_size);
        run_state
    }

    /// Adds ranks until the run has at least `ranks` ranks.
    fn grow(&mut self, ranks: usize) {
        for rank in self.ranks.len()..ranks {
            let checker =
                Some(LineChecker::new(self.run.id, self.run.spec, ChannelOwner::Rank(rank)));
            self.ranks.push(RankState { checker, finished: false, outcome: None, agent: None });
        }
        self.watchdog.grow(ranks, Instant::now());
        self.trace.grow(ranks);
    }

    /// Records a report about a rank. A line that is not the rank's next valid record is the last line that is read
    /// from the rank.
    pub(super) fn enter(&mut self, report: RankReport<'_>) -> Result<(), LaunchError> {
        match report {
            RankReport::Line { rank, line: Ok(line) } => self.line(rank, line),
            RankReport::Line { rank, line: Err(start) } => {
                self.violated(Some(rank), Violation::TooLong, start.excerpt())
            }
            RankReport::TooLong { rank, start } => {
                self.violated(Some(rank), Violation::TooLong, start)
            }
            RankReport::HostViolated { violation, line } => self.violated(None, violation, line),
            RankReport::Importing { what, t_ns } => {
                self.trace.record_at(t_ns, Event::Importing { what })
            }
            RankReport::Spawned { rank, pid, agent, t_ns } => {
                self.grow(rank + 1);
                let known = self.ranks[rank].agent.replace(agent);
                if let (Some(Some(first)), Some(second)) = (known, agent)
                    && first != second
                {
                    let agents = [first.min(second), first.max(second)];
                    return Err(LaunchError::Apart { rank, agents });
                }
                self.watchdog.spawned(rank, Instant::now());
                self.trace.record_at(t_ns, Event::RankSpawned { rank, pid, agent })
            }
            RankReport::Ended { rank, outcome, t_ns } => self.ended(rank, outcome, t_ns),
            RankReport::Gone { rank } => {
                self.watchdog.ended(rank, true, Instant::now());
                Ok(())
            }
            RankReport::LetGo { rank } => {
                self.let_go(rank, "the rank could write no more, or its channel was removed")
            }
            RankReport::Event { rank: None, event } => self.trace.record(event),
            RankReport::Event { rank: Some(rank), event } => {
                let seq = self.ranks[rank].checker.as_ref().map_or(0, LineChecker::next_seq);
                self.trace.record_of(rank, seq, event)
            }
            RankReport::Stderr { rank, tail } => self.trace.record(Event::Stderr { rank, tail }),
            // Messages between ranks are not recorded.
            RankReport::Message(_) => Ok(()),
        }
    }

    fn line(&mut self, rank: usize, line: &[u8]) -> Result<(), LaunchError> {
        let state = &mut self.ranks[rank];
        let Some(checker) = &mut state.checker else { return Ok(()) };
        match checker.check(line) {
            Ok(record) => {
                state.finished |= record.event == Event::Finished;
                self.watchdog.heard(rank, &record.event, Instant::now());
                if let Event::RankJoined { world_size, .. } = record.event {
                    self.grow(world_size.min(MOST_RANKS));
                }
                self.trace.relay(line, record)
            }
            Err(violation) => self.violated(Some(rank), violation, excerpt(line)),
        }
    }

    fn violated(
        &mut self,
        rank: Option<usize>,
        violation: Violation,
        line: String,
    ) -> Result<(), LaunchError> {
        if let Some(rank) = rank {
            self.ranks[rank].checker = None;
        }
        self.is_violated = true;
        self.trace.record(Event::ProtocolViolated { rank, violation, line })?;
        let joined = rank.filter(|_| !self.run.spec.is_settled());
        joined.map_or(Ok(()), |rank| self.let_go(rank, "the rank violated the protocol"))
    }

    /// Records that a rank of the user's command is no longer watched. From then on the rank counts as finished.
    fn let_go(&mut self, rank: usize, why: &str) -> Result<(), LaunchError> {
        let state = &mut self.ranks[rank];
        if state.finished {
            return Ok(());
        }
        let seq = state.checker.take().map_or(0, |checker| checker.next_seq());
        state.finished = true;
        self.watchdog.heard(rank, &Event::Finished, Instant::now());
        let (what, why) = (REST_OF_SCRIPT.to_owned(), why.to_owned());
        self.trace.record_of(rank, seq, Event::NotObserved { what, why })?;
        self.trace.record_of(rank, seq + 1, Event::Finished)
    }

    fn ended(&mut self, rank: usize, outcome: Outcome, t_ns: u64) -> Result<(), LaunchError> {
        self.grow(rank + 1);
        if self.ranks[rank].outcome.is_some() {
            return Ok(());
        }
        self.ranks[rank].outcome = Some(outcome);
        self.watchdog.ended(rank, outcome == Outcome::Code(0), Instant::now());
        self.trace.record_at(t_ns, Event::RankExited { rank, outcome })
    }

    /// Records that the state of a rank is unknown from now on, because its agent is lost.
    pub(super) fn lose(&mut self, rank: usize) -> Result<(), LaunchError> {
        self.ended(rank, Outcome::Lost, now_ns())
    }

    /// Records an event of the launcher with the current time.
    pub(super) fn record(&mut self, event: Event) -> Result<(), LaunchError> {
        self.trace.record(event)
    }

    /// Hands all trace data to the operating system, so that the data outlives the launcher.
    pub(super) fn flush(&mut self) -> Result<(), LaunchError> {
        self.trace.flush()
    }

    /// Removes the secrets of the specification from the logs of the run.
    pub(super) fn keep_secrets_out_of_logs(&self, run_dir: &Path) -> Result<(), LaunchError> {
        self.trace.keep_secrets_out_of_logs(run_dir)
    }

    /// True if a process wrote something on a channel that violates the protocol.
    pub(super) fn is_violated(&self) -> bool {
        self.is_violated
    }

    /// Returns the ranks whose processes have not ended.
    pub(super) fn running(&self) -> Vec<usize> {
        self.select(|rank| rank.outcome.is_none())
    }

    /// Returns the ranks that have finished and whose processes have not ended.
    pub(super) fn leaving(&self) -> Vec<usize> {
        self.select(|rank| rank.finished && rank.outcome.is_none())
    }

    /// Returns, for each rank, whether the rank has finished, and whether its process has ended with success.
    pub(super) fn final_states(&self) -> Vec<FinalState> {
        let final_state = |rank: &RankState| FinalState {
            has_finished: rank.finished,
            has_ended_well: rank.finished && rank.outcome == Some(Outcome::Code(0)),
        };
        self.ranks.iter().map(final_state).collect()
    }

    /// True if there are ranks and all of them have finished.
    pub(super) fn are_complete(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.iter().all(|rank| rank.finished)
    }

    /// True if at least one rank has finished.
    pub(super) fn are_partly_complete(&self) -> bool {
        self.ranks.iter().any(|rank| rank.finished)
    }

    fn select(&self, is_one: impl Fn(&RankState) -> bool) -> Vec<usize> {
        (0..self.ranks.len()).filter(|&rank| is_one(&self.ranks[rank])).collect()
    }
}
