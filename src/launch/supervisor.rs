//! Supervises a run: waits for events, records them, and ends the run when it is over.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::channel::State;
use super::conversation::{Breach, Conversation};
use super::group::{self, ProcessGroup};
use super::host::{self, Started};
use super::log_tail::log_tail;
use super::recorder::{Recorder, now_ns};
use super::signals::Signals;
use super::starvation::Starvation;
use super::strays::{Strays, adopt_orphans};
use super::wait::{Ready, wait};
use super::watchdog::{Silence, Verdict, Watchdog};
use super::{Ended, Hosting, Launch, LaunchError};
use crate::trace::contract::LogOf;
use crate::trace::{Event, Outcome, Record, TRACE_FILE};

/// Longest timeout, a century, to which a longer one is cut so that no point in time is out of
/// range.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Performs a run; see [`Launch::run`].
pub(super) fn run(
    launch: &Launch<'_>,
    observer: &mut dyn FnMut(&Record),
) -> Result<Ended, LaunchError> {
    let run_dir = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(launch.run_dir)
        .and_then(|()| launch.run_dir.canonicalize())
        .map_err(|cause| LaunchError::RunDir { path: launch.run_dir.to_owned(), cause })?;
    let mut recorder = Recorder::create(&run_dir, launch.run_id, launch.spec, observer)?;
    adopt_orphans()?;
    let signals = Signals::listen().map_err(LaunchError::system("signal handlers"))?;
    recorder.start(launch.spec)?;
    let (trace, logs) = (run_dir.join(TRACE_FILE), run_dir.clone());
    let mut supervisor = Supervisor::start(launch, run_dir, recorder).inspect_err(|_| {
        // Nothing ran, so no trace and no logs are kept. An obstacle to removing them is one that
        // the error names already.
        let _ = std::fs::remove_file(&trace);
        for log in (0..launch.spec.world_size).map(LogOf::Rank).chain([LogOf::Host]) {
            let _ = std::fs::remove_file(log.stdout(&logs));
            let _ = std::fs::remove_file(log.stderr(&logs));
        }
    })?;
    match supervisor.watch(&signals) {
        Ok(()) => supervisor.end(),
        Err(error) => {
            // Neither their outcomes nor those that did not die are recorded.
            supervisor.end_processes(&mut Vec::new());
            Err(error)
        }
    }
}

/// A run in progress.
struct Supervisor<'a> {
    strays: Strays,
    run_dir: PathBuf,
    recorder: Recorder<'a>,
    watchdog: Watchdog,
    starvation: Starvation,
    timeout_s: u64,
    ranks: Vec<Rank>,
    hosting: Hosting,
    /// Hosts: one for each rank, or one for all ranks.
    hosts: Vec<Host>,
    /// Conversations with the ranks, in rank order, then with the host that forks them; none once
    /// closed.
    conversations: Vec<Option<Conversation>>,
    violated: bool,
}

#[derive(Clone, Default)]
struct Rank {
    pid: Option<u32>,
    finished: bool,
    outcome: Option<Outcome>,
}

struct Host {
    group: ProcessGroup,
    ended: bool,
}

impl<'a> Supervisor<'a> {
    /// Starts the ranks.
    fn start(
        launch: &Launch<'_>,
        run_dir: PathBuf,
        recorder: Recorder<'a>,
    ) -> Result<Self, LaunchError> {
        let world_size = launch.spec.world_size;
        let timeout = Duration::from_secs(launch.spec.timeout_s).min(FOREVER);
        let Started { groups, conversations } = host::start(launch, &run_dir)?;
        // The watchdog starts only now, because a busy machine takes long to start each process.
        let watchdog = Watchdog::new(world_size, timeout, Instant::now());
        let mut supervisor = Self {
            strays: launch.source.strays(launch.run_id),
            run_dir,
            recorder,
            watchdog,
            starvation: Starvation::default(),
            timeout_s: launch.spec.timeout_s,
            ranks: vec![Rank::default(); world_size],
            hosting: launch.source.hosting(),
            hosts: groups.into_iter().map(|group| Host { group, ended: false }).collect(),
            conversations: conversations.into_iter().map(Some).collect(),
            violated: false,
        };
        if supervisor.hosting == Hosting::OnePerRank {
            for rank in 0..world_size {
                let pid = supervisor.hosts[rank].group.pid();
                supervisor.rank_spawned(rank, pid, now_ns())?;
            }
        }
        Ok(supervisor)
    }

    /// Records what happens until the run is over or has to be ended.
    fn watch(&mut self, signals: &Signals) -> Result<(), LaunchError> {
        let mut until = Instant::now();
        while !self.hosts.iter().all(|host| host.ended) {
            self.recorder.flush()?;
            let channels = self.conversations.iter().map(|it| it.as_ref().map(|it| &it.channel));
            let ready: Ready = wait(channels, signals, until)
                .map_err(LaunchError::system("the wait for the ranks"))?;
            if ready.interrupted {
                return self.recorder.record(Event::Interrupted);
            }
            for line in ready.channels {
                self.listen(line)?;
            }
            if ready.child {
                signals.clear_child();
                self.reap()?;
            }
            if self.violated {
                return Ok(());
            }
            // Judged after listening, so that a launcher that was held up blames no rank for it.
            until = match self.watchdog.verdict(Instant::now()) {
                Verdict::WaitUntil(time) => time,
                // No rank is blamed for time without a core: the situation is judged once more.
                Verdict::GraceOver if self.grace_starved() => Instant::now(),
                Verdict::Silent(silence) if self.starved(&silence.silent) => Instant::now(),
                Verdict::GraceOver => return Ok(()),
                Verdict::Silent(Silence { silent, waiting }) => {
                    let timeout_s = self.timeout_s;
                    return self.recorder.record(Event::TimedOut { silent, timeout_s, waiting });
                }
            };
        }
        Ok(())
    }

    /// Returns true if one of the ranks in `silent`, or one that has finished but not ended, had no
    /// core, so that it gets more time.
    fn starved(&mut self, silent: &[usize]) -> bool {
        let mut starved = false;
        let is_leaving = |rank: &Rank| rank.finished && rank.outcome.is_none();
        let leaving = (0..self.ranks.len()).filter(|&rank| is_leaving(&self.ranks[rank]));
        let awaited: Vec<usize> = leaving.chain(silent.iter().copied()).collect();
        // Ranks that were not forked yet share the process that is looked at.
        let mut seen = HashMap::new();
        for rank in awaited {
            let Some(pid) = self.process_of(rank) else { continue };
            let look = || self.starvation.since_last_look(pid);
            let by = *seen.entry(pid).or_insert_with(look);
            starved |= self.watchdog.starved(rank, by);
        }
        starved
    }

    /// Returns true if a process that is left when a grace is over had no core, so that the grace
    /// gets longer.
    fn grace_starved(&mut self) -> bool {
        let left = (0..self.ranks.len()).filter(|&rank| self.ranks[rank].outcome.is_none());
        let mut left: Vec<u32> = left.filter_map(|rank| self.process_of(rank)).collect();
        left.extend(self.hosts.iter().filter(|host| !host.ended).map(|host| host.group.pid()));
        let by = left.into_iter().map(|pid| self.starvation.since_last_look(pid)).max();
        by.is_some_and(|by| self.watchdog.grace_starved(by))
    }

    /// Id of the process of a rank, or, before that was forked, of its host.
    fn process_of(&self, rank: usize) -> Option<u32> {
        let host = self.hosts.get(self.host_of(rank)).map(|host| host.group.pid());
        self.ranks[rank].pid.or(host)
    }

    /// Receives and records the lines on the channel `index`, which is closed at its end and at a
    /// violation.
    fn listen(&mut self, index: usize) -> Result<(), LaunchError> {
        let Some(mut conversation) = self.conversations[index].take() else { return Ok(()) };
        let state = conversation.channel.receive();
        let rank = conversation.sender.rank();
        while let Some(heard) = conversation.next_record() {
            match heard {
                Ok((line, record)) => self.accept(line, record)?,
                Err(Breach { violation, line }) => {
                    self.violated = true;
                    let event = Event::ProtocolViolated { rank, violation, line };
                    return self.recorder.record(event);
                }
            }
        }
        if state == State::Open {
            self.conversations[index] = Some(conversation);
        }
        Ok(())
    }

    fn accept(&mut self, line: &[u8], record: Record) -> Result<(), LaunchError> {
        match (record.rank, &record.event) {
            (Some(rank), event) => {
                let now = Instant::now();
                self.ranks[rank].finished |= *event == Event::Finished;
                self.watchdog.heard(rank, event, now);
                self.recorder.relay(line, record)
            }
            // What a host sees is recorded as if the launcher had seen it.
            (None, &Event::RankSpawned { rank, pid }) => self.rank_spawned(rank, pid, record.t_ns),
            (None, &Event::RankExited { rank, outcome }) => {
                self.rank_ended(rank, outcome, record.t_ns)
            }
            (None, _) => Ok(()),
        }
    }

    fn rank_spawned(&mut self, rank: usize, pid: u32, t_ns: u64) -> Result<(), LaunchError> {
        self.ranks[rank].pid = Some(pid);
        self.watchdog.spawned(rank, Instant::now());
        self.recorder.record_at(t_ns, Event::RankSpawned { rank, pid })
    }

    /// Records the end of a rank, after all lines that it had still sent. Only the first report
    /// counts.
    fn rank_ended(&mut self, rank: usize, outcome: Outcome, t_ns: u64) -> Result<(), LaunchError> {
        if self.ranks[rank].outcome.is_some() {
            return Ok(());
        }
        self.listen(rank)?;
        self.conversations[rank] = None;
        self.ranks[rank].outcome = Some(outcome);
        self.watchdog.ended(rank, outcome == Outcome::Code(0), Instant::now());
        self.recorder.record_at(t_ns, Event::RankExited { rank, outcome })
    }

    /// Takes note of the hosts that have ended since the last call.
    fn reap(&mut self) -> Result<(), LaunchError> {
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if host.ended {
                continue;
            }
            if let Some(outcome) = host.group.outcome() {
                host.ended = true;
                match self.hosting {
                    Hosting::OnePerRank => self.rank_ended(index, outcome, now_ns())?,
                    // The channel of the host is the last one.
                    Hosting::Forked => self.listen(self.ranks.len())?,
                }
            }
        }
        Ok(())
    }

    /// Ends all processes that are left, and records the outcome of each rank. Every rank ends
    /// exactly once.
    fn end(mut self) -> Result<Ended, LaunchError> {
        let mut orphans = Vec::new();
        let survivors = self.end_processes(&mut orphans);
        // The host's channel comes last and is heard first: it knows better how ranks ended.
        for index in (0..self.conversations.len()).rev() {
            self.listen(index)?;
        }
        for rank in 0..self.ranks.len() {
            let orphan = orphans.iter().find(|(pid, _)| Some(*pid) == self.ranks[rank].pid);
            let outcome = match orphan {
                Some(&(_, outcome)) => outcome,
                // A rank whose end was not reported ended with its host.
                None => self.host_outcome(rank).unwrap_or(Outcome::Reaped),
            };
            self.rank_ended(rank, outcome, now_ns())?;
        }
        self.record_stderr()?;
        self.recorder.flush()?;
        self.recorder.keep_secrets_out_of_logs(&self.run_dir)?;
        Ok(Ended { survivors })
    }

    /// Ends every process of the run, and returns the ids of those that did not die. Processes that
    /// ended by themselves and whose end their host did not report are added to `orphans`.
    fn end_processes(&mut self, orphans: &mut Vec<(u32, Outcome)>) -> Vec<u32> {
        let mut groups: Vec<_> = self.hosts.iter_mut().map(|host| &mut host.group).collect();
        let mut survivors = group::end(&mut groups, orphans);
        survivors.extend(self.strays.end());
        survivors
    }

    fn host_outcome(&mut self, rank: usize) -> Option<Outcome> {
        let host = self.host_of(rank);
        self.hosts.get_mut(host).and_then(|host| host.group.outcome())
    }

    /// Index of the host of a rank.
    fn host_of(&self, rank: usize) -> usize {
        match self.hosting {
            Hosting::OnePerRank => rank,
            Hosting::Forked => 0,
        }
    }

    /// Records the last lines on standard error of ranks that did not end well, and of the host
    /// that forked them.
    fn record_stderr(&mut self) -> Result<(), LaunchError> {
        let mut logs: Vec<_> = (0..self.ranks.len())
            .filter(|&rank| !self.ranks[rank].ended_well())
            .map(|rank| (Some(rank), LogOf::Rank(rank)))
            .collect();
        if self.hosting == Hosting::Forked
            && (!logs.is_empty() || self.host_outcome(0) != Some(Outcome::Code(0)))
        {
            logs.push((None, LogOf::Host));
        }
        for (rank, log) in logs {
            if let Some(tail) = log_tail(&log.stderr(&self.run_dir)) {
                self.recorder.record(Event::Stderr { rank, tail })?;
            }
        }
        Ok(())
    }
}

impl Rank {
    fn ended_well(&self) -> bool {
        self.finished && self.outcome == Some(Outcome::Code(0))
    }
}
