//! The processes of the ranks: their last activities, their ends, and the reasons for which the run ended.

use std::collections::BTreeMap;

use zprobe_model::trace::{
    AgentLoss, Event, Frame, Meeting, Meetings, Outcome, Violation, Waiting,
};
use zprobe_report::Ending;

/// The processes of all ranks, and the reasons why the run ended.
pub struct RankProcesses<'a> {
    /// The processes, indexed by rank.
    pub ranks: Vec<RankProcess<'a>>,
    /// The protocol violations.
    pub broken: Vec<Broken>,
    /// The silence for which the watchdog ended the run; `None` if the watchdog did not end it.
    pub timed_out: Option<TimedOut>,
    /// True if the user interrupted the run.
    interrupted: bool,
    /// The end of the rank host's standard error.
    pub host_stderr: Option<&'a str>,
    /// The agent that was lost last, as (machine name, reason). The exits of its ranks are recorded after this event.
    agent_lost: Option<(&'a str, AgentLoss)>,
    /// The points of the run at which ranks wait for each other, and the ranks that have reached them.
    meetings: Meetings,
}

/// The phrases with which the error message of a rank says that another rank was unreachable, in messages of Gloo, NCCL
/// and zprobe.
pub const SYMPTOMS: &[&str] = &[
    "Connection closed by peer",
    "Connection closed by remote peer",
    "remote process exit",
    "Connection reset by peer",
    "Broken pipe",
    "was never reached by rank",
    "Timed out waiting",
    "not every rank left",
    "the TCPStore, which rank 0 hosts, is gone",
];

/// A violation of the rank protocol.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// The rank that wrote the line; `None` for the process that hosts the ranks.
    pub rank: Option<usize>,
    /// The kind of violation.
    pub violation: Violation,
}

/// The silence after which the watchdog ended a run.
#[derive(Clone, Debug)]
pub struct TimedOut {
    /// The ranks that the watchdog named, each with the meeting that it was in; `None` for a rank outside of any
    /// meeting.
    pub named: Vec<(usize, Option<Meeting>)>,
    /// The ranks that waited for others.
    pub waiting: Vec<Waiting>,
    /// The time limit of the watchdog, in seconds.
    pub timeout_s: u64,
}

/// The facts about the process of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankProcess<'a> {
    /// The process id.
    pub pid: Option<u32>,
    /// The outcome of the process; `None` if its end was not recorded.
    pub outcome: Option<Outcome>,
    /// The loss of the agent that had started the process, as (machine name, reason).
    pub lost: Option<(&'a str, AgentLoss)>,
    /// True if the last event of the process was [`Event::Finished`].
    pub finished: bool,
    /// True if a signal, such as SIGSTOP, had stopped the process when the watchdog ended it.
    pub is_stopped: bool,
    /// The last event of the process.
    pub last: Option<&'a Event>,
    /// The last [`Event::PhaseEntered`] of the rank.
    pub last_phase: Option<&'a Event>,
    /// The error message with which the rank reported a failure.
    pub failure: Option<&'a str>,
    /// The end of the standard error of the process.
    pub stderr: Option<&'a str>,
    /// The Python stacks of the process, by thread number; 0 is the main thread.
    pub stacks: BTreeMap<usize, &'a [Frame]>,
    /// The software versions that the rank reported.
    pub versions: Option<&'a BTreeMap<String, String>>,
}

impl<'a> RankProcesses<'a> {
    /// Creates the processes of this number of ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks: vec![RankProcess::default(); ranks],
            broken: Vec::new(),
            timed_out: None,
            interrupted: false,
            host_stderr: None,
            agent_lost: None,
            meetings: Meetings::new(ranks),
        }
    }

    /// Stores an event of a rank.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        self.meetings.see(rank, event);
        if *event == Event::Finished {
            self.meetings.leave(rank);
        }
        let process = &mut self.ranks[rank];
        process.last = Some(event);
        process.finished = matches!(event, Event::Finished);
        match event {
            Event::RankReady { versions, .. } => process.versions = Some(versions),
            Event::PhaseEntered { .. } => process.last_phase = Some(event),
            Event::Failed { message } => process.failure = Some(message),
            _ => {}
        }
    }

    /// Stores an event of the launcher.
    pub(super) fn see_launcher(&mut self, event: &'a Event) {
        match event {
            Event::RankSpawned { rank, pid, .. } => {
                if let Some(process) = self.ranks.get_mut(*rank) {
                    process.pid = Some(*pid);
                    // Removes the imports that the host recorded before it forked this rank.
                    process.last.take_if(|last| matches!(last, Event::Importing { .. }));
                }
            }
            Event::Importing { .. } => {
                let silent = self.ranks.iter_mut().filter(|process| process.pid.is_none());
                silent.for_each(|process| process.last = Some(event));
            }
            Event::AgentLost { machine, why, .. } => self.agent_lost = Some((machine, *why)),
            Event::RankExited { rank, outcome } => {
                let lost = self.agent_lost.filter(|_| *outcome == Outcome::Lost);
                if let Some(process) = self.ranks.get_mut(*rank) {
                    process.outcome = Some(*outcome);
                    process.lost = lost;
                    self.meetings.leave(*rank);
                }
            }
            Event::ProtocolViolated { rank, violation, .. } => {
                self.broken.push(Broken { rank: *rank, violation: *violation });
            }
            Event::TimedOut { silent, timeout_s, waiting } => {
                let ranks = self.ranks.len();
                let known = silent.iter().copied().filter(|rank| *rank < ranks);
                let by_all = self.meetings.reached_by_all();
                // Older traces do not record which ranks waited, and name the waiting ranks as silent too.
                let waits = |rank: usize| {
                    self.meetings.waits(rank, &by_all).map(|meeting| Waiting { rank, meeting })
                };
                let waiting = match &waiting[..] {
                    [] => known.clone().filter_map(waits).collect(),
                    told => told.iter().copied().filter(|it| it.rank < ranks).collect(),
                };
                self.timed_out = Some(TimedOut {
                    named: known.map(|rank| (rank, self.meetings.at(rank))).collect(),
                    waiting,
                    timeout_s: *timeout_s,
                });
            }
            Event::RankStopped { rank } => {
                if let Some(process) = self.ranks.get_mut(*rank) {
                    process.is_stopped = true;
                }
            }
            Event::Interrupted => self.interrupted = true,
            Event::StackTaken { rank, thread, frames } => {
                if let Some(process) = self.ranks.get_mut(*rank) {
                    process.stacks.insert(*thread, frames);
                }
            }
            Event::Stderr { rank: None, tail } => self.host_stderr = Some(tail),
            Event::Stderr { rank: Some(rank), tail } => {
                if let Some(process) = self.ranks.get_mut(*rank) {
                    process.stderr = Some(tail);
                }
            }
            _ => {}
        }
    }

    /// Sorts the protocol violations by rank.
    pub(super) fn sort(&mut self) {
        self.broken.sort_by_key(|broken| broken.rank);
    }

    /// True if every rank finished all of its work.
    pub fn all_finished(&self) -> bool {
        self.ranks.iter().all(|process| process.finished)
    }

    /// Returns the ending of the recording. The launcher records an end for every rank, so that a rank without one
    /// means that the trace stops early.
    pub fn ending(&self) -> Ending {
        if self.interrupted {
            Ending::Interrupted
        } else if self.ranks.iter().any(|process| process.outcome.is_none()) {
            Ending::CutOff
        } else {
            Ending::Complete
        }
    }
}

impl RankProcess<'_> {
    /// Describes the last known activity of the rank.
    pub fn last_words(&self) -> String {
        let phase = match self.last_phase {
            Some(Event::PhaseEntered { step, microbatch, phase }) => {
                Some(format!("{phase} of step {step}, microbatch {microbatch}"))
            }
            _ => None,
        };
        let phase = phase.unwrap_or_else(|| "start-up".to_owned());
        match self.last {
            None if !self.stacks.is_empty() => "before its first backward".to_owned(),
            None => "no event was ever sent".to_owned(),
            Some(Event::Finished) => "finished".to_owned(),
            Some(Event::Importing { what }) => format!("importing {what}"),
            Some(Event::Failed { .. }) if self.versions.is_none() && !self.stacks.is_empty() => {
                "before its first backward".to_owned()
            }
            Some(Event::RankReady { .. }) => "ready, joining the other ranks".to_owned(),
            Some(Event::CollectiveEntered { sequence, op, dtype, numel }) => {
                format!("in collective {sequence} ({op} of {numel} {dtype}), {phase}")
            }
            Some(_) => phase,
        }
    }

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
