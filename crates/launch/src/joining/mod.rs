//! Ranks that join a run: Python processes of a user's command. zprobe starts the command, and the command starts the
//! ranks.
//!
//! A process becomes a rank at its first backward. The process creates a file in the directory of the channels, named
//! after its rank and its process id, and writes the records of `docs/protocol.md` to this file. zprobe reads the
//! file while it grows, so that a rank never waits for zprobe. A second directory ([`processes`]) has the reports of
//! each process about its own end.

mod channels;
mod command;
mod dump;
mod mailbox;
mod processes;
mod stat;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use super::LaunchError;
use super::rank_report::{RankMessage, RankReport, ReportSink};
use super::ranks::{FinalState, RankProcesses, StopReason};
use super::starvation::Starvation;
use super::strays::Strays;
use super::trace_writer::now_ns;
use channels::Channels;
use command::ChildCommand;
use mailbox::Mailbox;
use processes::PythonProcesses;
use zprobe_model::spec::MOST_RANKS;
use zprobe_model::trace::{Event, Outcome};

/// The grace period of the other ranks after one rank has ended abnormally. The period is long because launchers
/// notice a crash late.
const CRASH_GRACE: Duration = Duration::from_secs(90);

/// The time for which the command may keep running after every rank has finished. Launchers check their ranks only
/// every few seconds.
const LINGER_GRACE: Duration = Duration::from_secs(10);

/// The interval between two checks of the files that the ranks write.
const LOOK: Duration = Duration::from_millis(100);

/// A command of the user whose processes join the run as its ranks. The command keeps the terminal: it shares the
/// standard streams and the process group of zprobe.
#[derive(Clone, Copy, Debug)]
pub struct UserCommand<'a> {
    /// The program and its arguments, as the user wrote them.
    pub words: &'a [OsString],
    /// The variables that are added to the environment of the command.
    pub variables: &'a [(&'static str, OsString)],
    /// The directory in which each rank creates the file of its channel.
    pub channels: &'a Path,
    /// The directory in which each Python process has a file about itself.
    pub processes: &'a Path,
    /// True if the command continues after its ranks have finished, because it does the user's own work.
    pub goes_on: bool,
}

/// A user's command, with the ranks that have joined.
pub(super) struct Joined<'a> {
    of: UserCommand<'a>,
    run: &'a str,
    /// The number of this agent; `None` in a run without other agents.
    agent: Option<usize>,
    command: ChildCommand,
    strays: Strays,
    channels: Channels,
    mailbox: Mailbox,
    /// The process id of each known rank.
    pids: BTreeMap<usize, u32>,
    /// The start time, in clock ticks, of each rank process on this machine and in zprobe's PID namespace.
    here: BTreeMap<usize, u64>,
    /// The ranks whose processes ran on this machine and have exited.
    gone: BTreeSet<usize>,
    /// The ranks whose processes were still running when the run was ended.
    at_the_end: BTreeSet<usize>,
    next_look: Instant,
    starvation: Starvation,
}

impl<'a> Joined<'a> {
    /// Starts the command. `agent` is the number of this agent if the run has several agents.
    pub(super) fn start(
        of: &UserCommand<'a>,
        run: &'a str,
        agent: Option<usize>,
    ) -> Result<Self, LaunchError> {
        Ok(Self {
            of: *of,
            run,
            agent,
            command: ChildCommand::start(of, run)?,
            strays: Strays::of(run),
            channels: Channels::in_dir(of.channels),
            mailbox: Mailbox::below(of.channels),
            pids: BTreeMap::new(),
            here: BTreeMap::new(),
            gone: BTreeSet::new(),
            at_the_end: BTreeSet::new(),
            next_look: Instant::now(),
            starvation: Starvation::default(),
        })
    }

    /// Reads the new lines and messages of the ranks, and reports ranks that have joined since the last call.
    fn report_new(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let unreadable = LaunchError::unreadable(self.of.channels);
        for (rank, pid) in self.channels.look_for_new().map_err(unreadable)? {
            self.add_rank(rank, pid, sink)?;
        }
        if self.agent.is_some() {
            let unreadable = LaunchError::unreadable(self.of.channels);
            let rank_messages = self.mailbox.collect().map_err(unreadable)?;
            rank_messages
                .into_iter()
                .try_for_each(|rank_message| sink(RankReport::Message(rank_message)))?;
        }
        self.channels.hear(sink)
    }

    /// Notes and reports the process of a rank.
    fn add_rank(
        &mut self,
        rank: usize,
        pid: u32,
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        self.pids.insert(rank, pid);
        let start = stat::start(pid).filter(|_| self.strays.are(pid));
        self.here.extend(start.map(|start| (rank, start)));
        sink(RankReport::Spawned { rank, pid, agent: self.agent, t_ns: now_ns() })
    }

    /// Returns the ranks, with their process ids, whose processes on this machine have not been seen to exit.
    fn left(&self) -> impl Iterator<Item = (usize, u32)> {
        let is_left = |rank: &usize| self.here.contains_key(rank) && !self.gone.contains(rank);
        let all = self.pids.iter().map(|(rank, pid)| (*rank, *pid));
        all.filter(move |(rank, _)| is_left(rank))
    }

    /// Reports ranks whose processes are gone. Their outcomes are not known before the command is over.
    fn look_for_ends(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let is_gone =
            |(rank, pid): &(usize, u32)| stat::start(*pid).as_ref() != self.here.get(rank);
        let gone: Vec<usize> = self.left().filter(is_gone).map(|(rank, _)| rank).collect();
        if !gone.is_empty() {
            // The last lines that these ranks wrote are reported first.
            self.report_new(sink)?;
        }
        for rank in gone {
            self.gone.insert(rank);
            self.mailbox.say_gone(rank);
            sink(RankReport::Gone { rank })?;
        }
        Ok(())
    }

    /// Returns the presumed outcome of a rank whose outcome was not reported.
    fn presumed(
        &self,
        rank: usize,
        has_finished: bool,
        why: StopReason,
        processes: &PythonProcesses,
    ) -> Outcome {
        match why {
            _ if has_finished => Outcome::Code(0),
            StopReason::Over => self.ended_with_command(rank, processes).unwrap_or(Outcome::Unseen),
            StopReason::Silent | StopReason::Interrupted => Outcome::Reaped,
            StopReason::Crashed if self.at_the_end.contains(&rank) => Outcome::Reaped,
            StopReason::Crashed | StopReason::Lingers => Outcome::Unseen,
        }
    }

    /// Returns the outcome of a rank whose process is the command itself, or which a signal ended together with the
    /// command. Returns `None` if zprobe has asked the command to end on the request of another agent.
    fn ended_with_command(&self, rank: usize, processes: &PythonProcesses) -> Option<Outcome> {
        if self.command.was_asked {
            return None;
        }
        let command = self.command.pid();
        if self.pids.get(&rank) == Some(&command) {
            return self.command.outcome;
        }
        let signal = match self.command.outcome? {
            Outcome::Signal(signal) => Some(signal),
            _ => processes.signal_of_launcher(command),
        };
        signal.map(Outcome::WithLauncher)
    }

    fn processes(&self) -> Result<PythonProcesses, LaunchError> {
        PythonProcesses::read(self.of.processes).map_err(LaunchError::unreadable(self.of.processes))
    }
}

impl RankProcesses for Joined<'_> {
    fn is_over(&self) -> bool {
        self.command.outcome.is_some()
    }

    fn reap(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        if self.command.reap() { self.report_new(sink) } else { Ok(()) }
    }

    fn look(&mut self, sink: &mut ReportSink<'_>) -> Result<Option<Instant>, LaunchError> {
        let now = Instant::now();
        if now >= self.next_look {
            self.report_new(sink)?;
            self.look_for_ends(sink)?;
            self.next_look = now + LOOK;
        }
        Ok(Some(self.next_look))
    }

    fn outlive_the_run(&self) -> bool {
        self.of.goes_on
    }

    fn crash_grace(&self) -> Option<Duration> {
        (!self.of.goes_on).then_some(CRASH_GRACE)
    }

    fn linger_grace(&self) -> Duration {
        LINGER_GRACE
    }

    fn are_the_users(&self) -> bool {
        true
    }

    fn before_silence(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let unreadable = LaunchError::unreadable(self.of.processes);
        processes::take_stacks(self.of.processes, self.run).map_err(unreadable)?;
        let processes = self.processes()?;
        let silent: Vec<(usize, u32)> = processes
            .of_ranks(&self.pids)
            .into_iter()
            .filter(|(rank, _)| !self.pids.contains_key(rank))
            .map(|(rank, process)| (rank, process.pid()))
            .collect();
        silent.into_iter().try_for_each(|(rank, pid)| self.add_rank(rank, pid, sink))?;
        let stopped = self.left().filter(|(_, pid)| stat::is_stopped(*pid));
        stopped
            .map(|(rank, _)| Event::RankStopped { rank })
            .try_for_each(|event| sink(RankReport::Event { rank: None, event }))
    }

    fn deliver(&mut self, rank_message: &RankMessage) -> Result<(), LaunchError> {
        self.mailbox.deliver(rank_message).map_err(LaunchError::unwritable(self.of.channels))
    }

    fn starved(&mut self, awaited: &[usize]) -> Vec<(usize, Duration)> {
        let left: Vec<(usize, u32)> =
            self.left().filter(|(rank, _)| awaited.contains(rank)).collect();
        let look = |(rank, pid)| (rank, self.starvation.since_last_look(pid));
        left.into_iter().map(look).collect()
    }

    fn left_starved(&mut self) -> Option<Duration> {
        let left: Vec<u32> = self.left().map(|(_, pid)| pid).collect();
        left.into_iter().map(|pid| self.starvation.since_last_look(pid)).max()
    }

    fn end(&mut self, why: StopReason, sink: &mut ReportSink<'_>) -> Result<Vec<u32>, LaunchError> {
        self.look_for_ends(sink)?;
        self.at_the_end = self.left().map(|(rank, _)| rank).collect();
        match why {
            // The user's work is not ended, whatever happens to another agent.
            StopReason::Over if self.of.goes_on => self.command.wait(),
            StopReason::Over
            | StopReason::Silent
            | StopReason::Interrupted
            | StopReason::Crashed => self.command.ask_to_end(),
            StopReason::Lingers => {}
        }
        let survivors = self.strays.end();
        self.command.reap();
        self.report_new(sink)?;
        let outcome = self.command.outcome;
        sink(RankReport::Event { rank: None, event: Event::CommandEnded { outcome } })?;
        Ok(survivors)
    }

    fn kill(&mut self) -> Vec<u32> {
        if self.of.goes_on {
            // The user's work is not ended, whatever has happened to zprobe.
            self.command.wait();
        }
        self.strays.end()
    }

    /// Reports how ranks ended, as far as their processes and their launcher have reported it.
    fn report_stderr(
        &mut self,
        why: StopReason,
        ranks: &[FinalState],
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        let processes = self.processes()?;
        let of_ranks = processes.of_ranks(&self.pids);
        let has_finished = |rank: usize| ranks.get(rank).is_some_and(|it| it.has_finished);
        for (&rank, process) in of_ranks.iter().filter(|(rank, _)| !has_finished(**rank)) {
            if !self.pids.contains_key(&rank) {
                let (pid, agent) = (process.pid(), self.agent);
                sink(RankReport::Spawned { rank, pid, agent, t_ns: now_ns() })?;
            }
            if let Some(message) = process.failure() {
                let event = Event::Failed { message: message.to_owned() };
                sink(RankReport::Event { rank: Some(rank), event })?;
            }
            for event in process.stacks_taken(rank) {
                sink(RankReport::Event { rank: None, event })?;
            }
        }
        for rank in of_ranks.keys().chain(self.pids.keys()) {
            let reported = of_ranks.get(rank).and_then(|process| processes.outcome(process));
            // A rank that has finished may be ended in any way, but its own exit code is known.
            let is_own = |it: &Outcome| !has_finished(*rank) || matches!(it, Outcome::Code(_));
            let outcome = reported.filter(is_own);
            let outcome = outcome
                .unwrap_or_else(|| self.presumed(*rank, has_finished(*rank), why, &processes));
            sink(RankReport::Ended { rank: *rank, outcome, t_ns: now_ns() })?;
        }
        Ok(())
    }

    fn report_unheard(
        &mut self,
        why: StopReason,
        ranks: &[FinalState],
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        let processes = self.processes()?;
        let world_size = processes.world_size().unwrap_or(0).min(MOST_RANKS);
        for rank in 0..world_size.max(ranks.len()) {
            let has_finished = ranks.get(rank).is_some_and(|it| it.has_finished);
            let outcome = self.presumed(rank, has_finished, why, &processes);
            sink(RankReport::Ended { rank, outcome, t_ns: now_ns() })?;
        }
        Ok(())
    }
}
