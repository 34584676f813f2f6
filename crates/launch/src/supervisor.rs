//! Supervises a run: waits for events, records them, and ends the run when it is over.

use std::fs::DirBuilder;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::agents::{AgentNotice, Leader, LeaderCommand, Team};
use super::rank_report::RankReport;
use super::ranks::{RankProcesses, StopReason};
use super::run_state::RunState;
use super::signals::Signals;
use super::strays::adopt_orphans;
use super::trace_writer::TraceWriter;
use super::wait::{Ready, wait};
use super::watchdog::{Silence, Watchdog, WatchdogDecision};
use super::{LaunchError, RunIdentity, Survivors};
use zprobe_model::trace::{AgentLoss, Event, Record, TRACE_FILE};

/// The longest timeout, a century. Longer timeouts are cut to this value, so that every point in time is
/// representable.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The shortest time after which a silent agent counts as lost.
const SHORTEST_SILENCE: Duration = Duration::from_secs(5);

/// The shortest time after which a silent agent of a user's command counts as lost. Such an agent is busy while it
/// takes stacks, or while it asks the command to end.
const SHORTEST_SILENCE_OF_USERS: Duration = Duration::from_secs(30);

/// The time that other agents have to report their facts about silent ranks.
const LOOK: Duration = Duration::from_secs(15);

/// The other agents of a run.
pub(super) enum OtherAgents<'a> {
    /// The run has no other agents.
    Nobody,
    /// This process leads the other agents.
    Team(&'a mut Team),
    /// Another agent leads this process.
    Leader(&'a mut Leader),
}

/// Performs a run, or a part of it. `start` creates the ranks of this part, given the run directory; see
/// [`Launch::run`](super::Launch::run).
pub(super) fn run<'a>(
    run: RunIdentity<'a>,
    start: impl FnOnce(&Path) -> Result<Box<dyn RankProcesses + 'a>, LaunchError>,
    others: OtherAgents<'_>,
    observer: &mut dyn FnMut(&Record),
) -> Result<Survivors, LaunchError> {
    let run_dir = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(run.dir)
        .and_then(|()| run.dir.canonicalize())
        .map_err(|cause| LaunchError::RunDir { path: run.dir.to_owned(), cause })?;
    let mut trace = TraceWriter::create(&run_dir, run.id, run.spec, observer)?;
    adopt_orphans()?;
    let signals = Signals::listen().map_err(LaunchError::system("signal handlers"))?;
    trace.start(run.spec)?;
    let ranks = start(&run_dir).inspect_err(|_| {
        // No rank ran, so the trace is removed. If the removal fails, the error already names the reason.
        let _ = std::fs::remove_file(run_dir.join(TRACE_FILE));
    })?;
    let timeout = Duration::from_secs(run.spec.timeout_s).min(FOREVER);
    // The watchdog starts only after all ranks, because a busy machine takes long to start each process.
    let watchdog = Watchdog::new(run.spec.world_size, timeout, Instant::now())
        .with_graces(ranks.crash_grace(), ranks.linger_grace());
    let run_state = RunState::open(run, trace, watchdog);
    let shortest = if ranks.are_the_users() { SHORTEST_SILENCE_OF_USERS } else { SHORTEST_SILENCE };
    let silence = (timeout / 2).max(shortest);
    let mut supervisor = Supervisor {
        ranks,
        others,
        run_state,
        timeout_s: run.spec.timeout_s,
        silence,
        is_given_up: false,
        survivors: Vec::new(),
        end: None,
    };
    let watched = supervisor.record_start().and_then(|()| supervisor.watch(&signals));
    match watched.and_then(|why| supervisor.end(&run_dir, why)) {
        Ok(ended) => Ok(ended),
        Err(error) => {
            supervisor.abandon();
            Err(error)
        }
    }
}

/// A run in progress.
struct Supervisor<'a, 'b> {
    ranks: Box<dyn RankProcesses + 'b>,
    others: OtherAgents<'a>,
    run_state: RunState<'b>,
    timeout_s: u64,
    /// The time after which a silent agent counts as lost.
    silence: Duration,
    /// True once the watchdog no longer judges the user's processes, which continue.
    is_given_up: bool,
    /// The ids of processes, on all machines, that did not die.
    survivors: Vec<u32>,
    /// The reason to end the run; `None` while the run continues.
    end: Option<EndReason>,
}

/// The reason to end a run before its processes have ended by themselves.
#[derive(Debug)]
enum EndReason {
    /// A reason whose details are in the trace.
    Recorded(StopReason),
    /// Another agent could not start its ranks.
    Failed { machine: String, message: String },
}

impl Supervisor<'_, '_> {
    /// Records the agents of the run, and the processes that exist from the start.
    fn record_start(&mut self) -> Result<(), LaunchError> {
        if let OtherAgents::Team(team) = &self.others {
            for (agent, clock_ns) in team.agents() {
                self.run_state.record(Event::AgentJoined {
                    agent: agent.index,
                    machine: agent.machine.clone(),
                    first_rank: agent.ranks.start,
                    ranks: agent.ranks.len(),
                    clock_ns,
                })?;
            }
        }
        let Self { ranks, others, run_state, .. } = self;
        ranks.report_started(&mut |report| record_report(report, others, run_state))
    }

    /// Records events until the run is over or has to be ended.
    fn watch(&mut self, signals: &Signals) -> Result<StopReason, LaunchError> {
        let mut until = Instant::now();
        while !self.is_over() {
            self.run_state.flush()?;
            let next = [self.beat()?, self.look()?].into_iter().flatten().min();
            let ready = self.wait(signals, next.map_or(until, |next| next.min(until)))?;
            if ready.interrupted {
                return self.interrupted().map(|()| StopReason::Interrupted);
            }
            for index in ready.descriptors {
                self.listen(index)?;
            }
            if ready.child {
                signals.clear_child();
                let Self { ranks, others, run_state, .. } = self;
                ranks.reap(&mut |report| record_report(report, others, run_state))?;
                if let (OtherAgents::Leader(leader), true) = (others, ranks.is_over()) {
                    leader.tell_idle();
                }
            }
            if self.is_to_end() || self.run_state.is_violated() && !self.ranks.are_the_users() {
                break;
            }
            if matches!(self.others, OtherAgents::Leader(_)) || self.is_no_longer_judged() {
                // A follower does not judge, because its leader does. Processes that were given up are not judged at
                // all.
                until = Instant::now() + self.silence;
                continue;
            }
            // The verdict follows after the channels were read, so that a launcher that was held up does not blame a
            // rank.
            until = match self.run_state.watchdog.verdict(Instant::now()) {
                WatchdogDecision::WaitUntil(time) => time,
                // No rank is blamed for time without a core: the watchdog judges once more.
                WatchdogDecision::GraceOver if self.grace_starved() => Instant::now(),
                WatchdogDecision::Silent(silence) if self.starved(&silence.silent) => {
                    Instant::now()
                }
                WatchdogDecision::GraceOver if self.ranks.outlive_the_run() => self.give_up(),
                // The ranks that are no longer watched may be the reason why the other ranks are silent.
                WatchdogDecision::Silent(_)
                    if self.ranks.outlive_the_run() && self.run_state.are_partly_complete() =>
                {
                    self.give_up()
                }
                WatchdogDecision::GraceOver if self.run_state.watchdog.has_crashed() => {
                    return Ok(StopReason::Crashed);
                }
                WatchdogDecision::GraceOver => return Ok(StopReason::Lingers),
                WatchdogDecision::Silent(silence) => {
                    return self.silent(silence).map(|()| StopReason::Silent);
                }
            };
        }
        Ok(match &self.end {
            Some(EndReason::Recorded(why)) => *why,
            Some(EndReason::Failed { .. }) => StopReason::Crashed,
            None => StopReason::Over,
        })
    }

    /// True if the run is to be ended.
    fn is_to_end(&mut self) -> bool {
        if self.only_users_work_continues() {
            self.give_up();
            return false;
        }
        self.end.is_some()
    }

    /// True if the run is over except for the user's own work, which continues when another zprobe process ends.
    fn only_users_work_continues(&self) -> bool {
        matches!(self.end, Some(EndReason::Recorded(StopReason::Over | StopReason::Crashed)))
            && self.ranks.outlive_the_run()
            && !self.ranks.is_over()
    }

    /// Checks the sources that cannot be polled. Returns the time of the next check.
    fn look(&mut self) -> Result<Option<Instant>, LaunchError> {
        let Self { ranks, others, run_state, .. } = self;
        ranks.look(&mut |report| record_report(report, others, run_state))
    }

    /// True if the processes continue although their ranks have finished, or can no longer be judged.
    fn is_no_longer_judged(&self) -> bool {
        self.is_given_up || self.ranks.outlive_the_run() && self.run_state.are_complete()
    }

    /// Stops judging the user's processes. Returns the time of the next check.
    fn give_up(&mut self) -> Instant {
        self.is_given_up = true;
        Instant::now()
    }

    /// Records that ranks are silent.
    fn silent(&mut self, Silence { silent, waiting }: Silence) -> Result<(), LaunchError> {
        if let (OtherAgents::Team(team), true) = (&mut self.others, self.ranks.are_the_users()) {
            team.ask_to_look();
        }
        let deadline = Instant::now() + LOOK;
        self.take_stacks()?;
        if self.ranks.are_the_users() {
            self.receive_from_all(deadline, Team::have_looked)?;
        }
        let Self { run_state, timeout_s, .. } = self;
        let silent = if silent.is_empty() { run_state.running() } else { silent };
        run_state.record(Event::TimedOut { silent, timeout_s: *timeout_s, waiting })
    }

    /// Takes the stacks of silent ranks.
    fn take_stacks(&mut self) -> Result<(), LaunchError> {
        let Self { ranks, others, run_state, .. } = self;
        ranks.before_silence(&mut |report| record_report(report, others, run_state))
    }

    /// True if all processes have ended. A run that another agent leads is over when the leader says so.
    fn is_over(&self) -> bool {
        match &self.others {
            OtherAgents::Nobody => self.ranks.is_over(),
            OtherAgents::Team(team) => self.ranks.is_over() && team.is_idle(),
            OtherAgents::Leader(_) => self.end.is_some() && !self.only_users_work_continues(),
        }
    }

    /// Waits for the channels of the ranks and the connections to other agents. The indices count the channels first.
    fn wait(&self, signals: &Signals, until: Instant) -> Result<Ready, LaunchError> {
        let is_full = matches!(&self.others, OtherAgents::Leader(leader) if leader.is_full());
        let channels = self.ranks.channels().into_iter();
        let channels = channels
            .map(|channel| channel.filter(|_| !is_full).map(|it| (it.as_fd(), PollFlags::POLLIN)));
        let cannot = LaunchError::system("the wait for events of the ranks");
        match &self.others {
            OtherAgents::Nobody => wait(channels, Some(signals), until),
            OtherAgents::Leader(leader) if leader.is_lost() => wait(channels, Some(signals), until),
            OtherAgents::Team(team) => wait(channels.chain(team.awaited()), Some(signals), until),
            OtherAgents::Leader(leader) => {
                wait(channels.chain([Some(leader.awaited())]), Some(signals), until)
            }
        }
        .map_err(cannot)
    }

    /// Reads from the channel or the connection with the index `index` in [`Self::wait`].
    fn listen(&mut self, index: usize) -> Result<(), LaunchError> {
        let channels = self.ranks.channels().len();
        let Some(link) = index.checked_sub(channels) else {
            let Self { ranks, others, run_state, .. } = self;
            return ranks.listen(index, &mut |report| record_report(report, others, run_state));
        };
        self.receive_from_agent(link)
    }

    fn receive_from_agent(&mut self, link: usize) -> Result<(), LaunchError> {
        let Self { ranks, others, run_state, survivors, end, .. } = self;
        match others {
            OtherAgents::Nobody => Ok(()),
            OtherAgents::Team(team) => {
                team.hear(link, &mut |notice| handle_notice(notice, run_state, survivors, end))?;
                team.take_rank_messages()
                    .iter()
                    .try_for_each(|rank_message| ranks.deliver(rank_message))
            }
            OtherAgents::Leader(leader) => {
                leader.hear().into_iter().try_for_each(|command| self.execute(command))
            }
        }
    }

    /// Executes a command of the leader.
    fn execute(&mut self, command: LeaderCommand) -> Result<(), LaunchError> {
        match command {
            LeaderCommand::Deliver(rank_message) => self.ranks.deliver(&rank_message),
            LeaderCommand::Look => {
                self.take_stacks()?;
                if let OtherAgents::Leader(leader) = &mut self.others {
                    leader.tell_looked();
                }
                Ok(())
            }
            LeaderCommand::End(why) => {
                self.end = Some(EndReason::Recorded(why));
                Ok(())
            }
            LeaderCommand::Lost(why) => self.lose_leader(why),
        }
    }

    /// Sends heartbeats to other agents, and marks agents as lost that have stopped sending heartbeats. Returns the
    /// time of the next heartbeat, or `None` without other agents.
    fn beat(&mut self) -> Result<Option<Instant>, LaunchError> {
        let Self { ranks, others, run_state, survivors, end, silence, .. } = self;
        match others {
            OtherAgents::Nobody => Ok(None),
            OtherAgents::Team(team) => {
                let next = team.beat(*silence, &mut |notice| {
                    handle_notice(notice, run_state, survivors, end)
                })?;
                team.take_rank_messages()
                    .iter()
                    .try_for_each(|rank_message| ranks.deliver(rank_message))?;
                Ok(Some(next))
            }
            OtherAgents::Leader(leader) if leader.is_lost() => Ok(None),
            OtherAgents::Leader(leader) => {
                if leader.beat_is_due() {
                    let running = run_state.running();
                    leader.beat(ranks.starved(&running));
                }
                let next = leader.next_beat();
                if leader.is_silent(*silence) {
                    self.lose_leader(AgentLoss::Silent)?;
                }
                Ok(Some(next))
            }
        }
    }

    /// Records that the leader is lost. The ranks of other agents count as lost once the ranks of this process have
    /// ended.
    fn lose_leader(&mut self, why: AgentLoss) -> Result<(), LaunchError> {
        let OtherAgents::Leader(leader) = &mut self.others else { return Ok(()) };
        leader.give_up();
        let machine = leader.machine();
        self.end = Some(EndReason::Recorded(StopReason::Over));
        self.run_state.record(Event::AgentLost { agent: 0, machine, why })
    }

    /// Records that the user has interrupted the run, and reports it to the leader.
    fn interrupted(&mut self) -> Result<(), LaunchError> {
        if self.is_no_longer_judged() {
            // The trace is complete already, so the interrupt is not recorded.
            return Ok(());
        }
        if let OtherAgents::Leader(leader) = &mut self.others {
            leader.tell_interrupted();
        }
        self.run_state.record(Event::Interrupted)
    }

    /// Gives more time to each rank that had no CPU core, if the rank is in `silent` or has finished and not ended.
    /// Returns true if a rank got more time.
    fn starved(&mut self, silent: &[usize]) -> bool {
        let mut awaited = self.run_state.leaving();
        awaited.extend(silent);
        let mut starved = false;
        for (rank, by) in self.ranks.starved(&awaited) {
            starved |= self.run_state.watchdog.starved(rank, by);
        }
        starved
    }

    /// Extends a grace period that is over if a remaining process had no CPU core. Returns true if the period was
    /// extended.
    fn grace_starved(&mut self) -> bool {
        let by = self.ranks.left_starved();
        by.is_some_and(|by| self.run_state.watchdog.grace_starved(by))
    }

    /// Ends all remaining processes, and records the outcome of each rank exactly once.
    fn end(&mut self, run_dir: &Path, why: StopReason) -> Result<Survivors, LaunchError> {
        let deadline = match &mut self.others {
            OtherAgents::Team(team) => Some(team.end(why)),
            OtherAgents::Nobody | OtherAgents::Leader(_) => None,
        };
        let Self { ranks, others, run_state, .. } = self;
        let own = ranks.end(why, &mut |report| record_report(report, others, run_state))?;
        let final_states = run_state.final_states();
        ranks.report_stderr(why, &final_states, &mut |report| {
            record_report(report, others, run_state)
        })?;
        if let OtherAgents::Leader(leader) = &mut self.others {
            leader.tell_done(&own);
            // The ranks of this process have ended by now.
            let foreign = if leader.is_lost() { self.run_state.running() } else { Vec::new() };
            foreign.into_iter().try_for_each(|rank| self.run_state.lose(rank))?;
        }
        self.survivors.extend(own);
        if let Some(deadline) = deadline {
            self.receive_remaining(deadline)?;
        }
        if !matches!(self.others, OtherAgents::Leader(_)) {
            let Self { ranks, others, run_state, .. } = self;
            let final_states = run_state.final_states();
            ranks.report_unheard(why, &final_states, &mut |report| {
                record_report(report, others, run_state)
            })?;
        }
        self.run_state.flush()?;
        self.run_state.keep_secrets_out_of_logs(run_dir)?;
        if let Some(EndReason::Failed { machine, message }) = self.end.take() {
            return Err(LaunchError::Agent { machine, message });
        }
        Ok(Survivors { pids: std::mem::take(&mut self.survivors) })
    }

    /// Receives the remaining messages of all agents, until `deadline`.
    fn receive_remaining(&mut self, deadline: Instant) -> Result<(), LaunchError> {
        self.receive_from_all(deadline, Team::is_done)?;
        let Self { others, run_state, survivors, end, .. } = self;
        let OtherAgents::Team(team) = others else { return Ok(()) };
        team.give_up(&mut |notice| handle_notice(notice, run_state, survivors, end))
    }

    /// Receives messages of the agents that this process leads, until `is_enough` returns true or until `deadline`.
    fn receive_from_all(
        &mut self,
        deadline: Instant,
        is_enough: fn(&Team) -> bool,
    ) -> Result<(), LaunchError> {
        let Self { others, run_state, survivors, end, silence, .. } = self;
        let OtherAgents::Team(team) = others else { return Ok(()) };
        let mut to = |notice: AgentNotice<'_>| handle_notice(notice, run_state, survivors, end);
        team.hear_until(is_enough, deadline, *silence, &mut to)
    }

    /// Ends all processes without recording how they ended.
    fn abandon(&mut self) {
        let deadline = match &mut self.others {
            OtherAgents::Team(team) => Some(team.end(StopReason::Over)),
            OtherAgents::Nobody | OtherAgents::Leader(_) => None,
        };
        self.ranks.kill();
        if let (Some(deadline), OtherAgents::Team(team)) = (deadline, &mut self.others) {
            // A connection that is closed before everything was read from it is reset, and the reason for the end
            // would be lost.
            let _ = team.hear_until(Team::is_done, deadline, self.silence, &mut |_| Ok(()));
        }
    }
}

/// Records a report about a rank, and passes the report on to the other agents that need it.
fn record_report(
    report: RankReport<'_>,
    others: &mut OtherAgents<'_>,
    run_state: &mut RunState<'_>,
) -> Result<(), LaunchError> {
    match (&mut *others, &report) {
        (OtherAgents::Leader(leader), report) => leader.tell(report),
        (OtherAgents::Team(team), RankReport::Message(rank_message)) => team.post(rank_message),
        _ => {}
    }
    run_state.enter(report)
}

/// Handles a message of another agent.
fn handle_notice(
    notice: AgentNotice<'_>,
    run_state: &mut RunState<'_>,
    survivors: &mut Vec<u32>,
    end: &mut Option<EndReason>,
) -> Result<(), LaunchError> {
    match notice {
        AgentNotice::Report(report) => run_state.enter(report),
        AgentNotice::Starved(ranks) => {
            for (rank, by) in ranks {
                run_state.watchdog.starved(rank, by);
            }
            Ok(())
        }
        AgentNotice::Interrupted => {
            end.get_or_insert(EndReason::Recorded(StopReason::Interrupted));
            run_state.record(Event::Interrupted)
        }
        AgentNotice::Failed { machine, message } => {
            *end = Some(EndReason::Failed { machine: machine.to_owned(), message });
            Ok(())
        }
        AgentNotice::Done(left) => {
            survivors.extend(left);
            Ok(())
        }
        AgentNotice::Lost { agent, ranks, why } => {
            let machine = agent.machine.clone();
            run_state.record(Event::AgentLost { agent: agent.index, machine, why })?;
            if ranks.is_empty() {
                // The agent has no ranks yet whose loss the watchdog would notice.
                end.get_or_insert(EndReason::Recorded(StopReason::Crashed));
            }
            ranks.iter().try_for_each(|rank| run_state.lose(*rank))
        }
    }
}
