//! The ranks whose processes this process starts, from the start of the processes to their end.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::channel::{Channel, ChannelState};
use super::group::{self, ProcessGroup};
use super::host::{self, StartedHosts};
use super::host_channel::{HostChannel, HostViolation};
use super::log_tail::log_tail;
use super::rank_report::{RankReport, ReportSink};
use super::rank_share::RankShare;
use super::ranks::{FinalState, RankProcesses, StopReason};
use super::starvation::Starvation;
use super::strays::Strays;
use super::trace_writer::now_ns;
use super::watchdog::{CRASH_GRACE, LINGER_GRACE};
use super::{Hosting, Launch, LaunchError};
use zprobe_model::trace::contract::LogOf;
use zprobe_model::trace::{Event, Outcome, Record};

/// The ranks whose processes this process starts.
pub(super) struct LocalRanks {
    strays: Strays,
    run_dir: PathBuf,
    hosting: Hosting,
    /// The host processes: one for each rank, or one for all ranks.
    hosts: Vec<LocalHost>,
    ranks: Range<usize>,
    processes: Vec<LocalProcess>,
    /// The event channels of the ranks, in rank order; `None` for a closed channel.
    channels: Vec<Option<Channel>>,
    /// The channel from the host that forks the ranks; `None` once closed, or if each rank is its own host.
    host: Option<HostChannel>,
    starvation: Starvation,
}

#[derive(Clone, Default)]
struct LocalProcess {
    pid: Option<u32>,
    outcome: Option<Outcome>,
}

struct LocalHost {
    group: ProcessGroup,
    ended: bool,
}

impl LocalRanks {
    /// Starts the ranks that `share` describes. If one of the ranks does not start, no process and no log is left.
    pub(super) fn start(
        launch: &Launch<'_>,
        run_dir: &Path,
        share: &RankShare,
    ) -> Result<Self, LaunchError> {
        let StartedHosts { groups, channels, host } = host::start(launch, run_dir, share)
            .inspect_err(|_| {
                // If a log cannot be removed, the error already names the reason.
                for log in share.ranks.clone().map(LogOf::Rank).chain([LogOf::Host]) {
                    let _ = std::fs::remove_file(log.stdout(run_dir));
                    let _ = std::fs::remove_file(log.stderr(run_dir));
                }
            })?;
        Ok(Self {
            strays: launch.source.strays(launch.run_id),
            run_dir: run_dir.to_owned(),
            hosting: launch.source.hosting(),
            hosts: groups.into_iter().map(|group| LocalHost { group, ended: false }).collect(),
            processes: vec![LocalProcess::default(); share.ranks.len()],
            ranks: share.ranks.clone(),
            channels: channels.into_iter().map(Some).collect(),
            host,
            starvation: Starvation::default(),
        })
    }

    fn receive_lines(
        &mut self,
        index: usize,
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        let Some(mut channel) = self.channels[index].take() else { return Ok(()) };
        let state = channel.receive();
        let rank = self.ranks.start + index;
        while let Some(line) = channel.next_line() {
            let is_too_long = line.is_err();
            sink(RankReport::Line { rank, line })?;
            if is_too_long {
                return Ok(());
            }
        }
        if state == ChannelState::Open {
            self.channels[index] = Some(channel);
        }
        Ok(())
    }

    fn listen_to_host(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        let Some(mut host) = self.host.take() else { return Ok(()) };
        let state = host.channel.receive();
        while let Some(record) = host.next_record() {
            match record {
                // The launcher passes on the reports of a host as if the launcher had observed the events itself.
                Ok(Record { event: Event::RankSpawned { rank, pid, .. }, t_ns, .. }) => {
                    self.spawned(rank, pid, t_ns, sink)?;
                }
                Ok(Record { event: Event::RankExited { rank, outcome }, t_ns, .. }) => {
                    self.ended(rank, outcome, t_ns, sink)?;
                }
                Ok(Record { event: Event::Importing { what }, t_ns, .. }) => {
                    sink(RankReport::Importing { what, t_ns })?;
                }
                Ok(_) => {}
                Err(HostViolation { violation, line }) => {
                    return sink(RankReport::HostViolated { violation, line });
                }
            }
        }
        if state == ChannelState::Open {
            self.host = Some(host);
        }
        Ok(())
    }

    fn spawned(
        &mut self,
        rank: usize,
        pid: u32,
        t_ns: u64,
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        self.processes[rank - self.ranks.start].pid = Some(pid);
        sink(RankReport::Spawned { rank, pid, agent: None, t_ns })
    }

    /// Reports the end of a rank, after the remaining lines of the rank. Only the first report for each rank counts.
    fn ended(
        &mut self,
        rank: usize,
        outcome: Outcome,
        t_ns: u64,
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        let index = rank - self.ranks.start;
        if self.processes[index].outcome.is_some() {
            return Ok(());
        }
        self.receive_lines(index, sink)?;
        self.channels[index] = None;
        self.processes[index].outcome = Some(outcome);
        sink(RankReport::Ended { rank, outcome, t_ns })
    }

    /// Ends every process of the run, and returns the ids of the processes that did not die. Processes that had ended
    /// by themselves, and whose end their host did not report, are added to `orphans`.
    fn kill_all(&mut self, orphans: &mut Vec<(u32, Outcome)>) -> Vec<u32> {
        let mut groups: Vec<_> = self.hosts.iter_mut().map(|host| &mut host.group).collect();
        let mut survivors = group::end(&mut groups, orphans);
        survivors.extend(self.strays.end());
        survivors
    }

    fn process(&self, rank: usize) -> &LocalProcess {
        &self.processes[rank - self.ranks.start]
    }

    /// Returns the id of the process of a rank, or the id of its host before the rank was forked.
    fn process_of(&self, rank: usize) -> Option<u32> {
        let host = self.hosts.get(self.host_of(rank)).map(|host| host.group.pid());
        self.process(rank).pid.or(host)
    }

    fn host_outcome(&mut self, rank: usize) -> Option<Outcome> {
        let host = self.host_of(rank);
        self.hosts.get_mut(host).and_then(|host| host.group.outcome())
    }

    /// Returns the index of the host of a rank.
    fn host_of(&self, rank: usize) -> usize {
        match self.hosting {
            Hosting::OnePerRank => rank - self.ranks.start,
            Hosting::Forked => 0,
        }
    }
}

impl RankProcesses for LocalRanks {
    fn report_started(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        if self.hosting == Hosting::OnePerRank {
            for index in 0..self.processes.len() {
                let pid = self.hosts[index].group.pid();
                self.spawned(self.ranks.start + index, pid, now_ns(), sink)?;
            }
        }
        Ok(())
    }

    /// Returns the channels of the ranks, followed by the channel of the host that forks the ranks.
    fn channels(&self) -> Vec<Option<&Channel>> {
        let host = self.host.as_ref().map(|host| &host.channel);
        self.channels.iter().map(Option::as_ref).chain([host]).collect()
    }

    fn listen(&mut self, index: usize, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        if index == self.channels.len() {
            self.listen_to_host(sink)
        } else {
            self.receive_lines(index, sink)
        }
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.ended)
    }

    fn reap(&mut self, sink: &mut ReportSink<'_>) -> Result<(), LaunchError> {
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if host.ended {
                continue;
            }
            if let Some(outcome) = host.group.outcome() {
                host.ended = true;
                match self.hosting {
                    Hosting::OnePerRank => {
                        self.ended(self.ranks.start + index, outcome, now_ns(), sink)?;
                    }
                    Hosting::Forked => self.listen_to_host(sink)?,
                }
            }
        }
        Ok(())
    }

    fn crash_grace(&self) -> Option<Duration> {
        Some(CRASH_GRACE)
    }

    fn linger_grace(&self) -> Duration {
        LINGER_GRACE
    }

    fn starved(&mut self, awaited: &[usize]) -> Vec<(usize, Duration)> {
        // Ranks that are not forked yet share one process, the host, which is checked only once.
        let mut seen = HashMap::new();
        let here = self.ranks.clone();
        awaited
            .iter()
            .copied()
            .filter(|rank| here.contains(rank))
            .filter_map(|rank| {
                let pid = self.process_of(rank)?;
                let look = || self.starvation.since_last_look(pid);
                Some((rank, *seen.entry(pid).or_insert_with(look)))
            })
            .collect()
    }

    fn left_starved(&mut self) -> Option<Duration> {
        let left = self.ranks.clone().filter(|&rank| self.process(rank).outcome.is_none());
        let mut left: Vec<u32> = left.filter_map(|rank| self.process_of(rank)).collect();
        left.extend(self.hosts.iter().filter(|host| !host.ended).map(|host| host.group.pid()));
        left.into_iter().map(|pid| self.starvation.since_last_look(pid)).max()
    }

    fn end(&mut self, _: StopReason, sink: &mut ReportSink<'_>) -> Result<Vec<u32>, LaunchError> {
        let mut orphans = Vec::new();
        let survivors = self.kill_all(&mut orphans);
        // The host is read first, because its reports on the ends of ranks are more exact than the outcomes seen
        // here.
        for index in (0..=self.channels.len()).rev() {
            self.listen(index, sink)?;
        }
        for rank in self.ranks.clone() {
            let orphan = orphans.iter().find(|(pid, _)| Some(*pid) == self.process(rank).pid);
            let outcome = match orphan {
                Some(&(_, outcome)) => outcome,
                // A rank whose end was not reported ended together with its host.
                None => self.host_outcome(rank).unwrap_or(Outcome::Reaped),
            };
            self.ended(rank, outcome, now_ns(), sink)?;
        }
        Ok(survivors)
    }

    fn report_stderr(
        &mut self,
        _: StopReason,
        ranks: &[FinalState],
        sink: &mut ReportSink<'_>,
    ) -> Result<(), LaunchError> {
        let mut logs: Vec<_> = self
            .ranks
            .clone()
            .filter(|&rank| !ranks[rank].has_ended_well)
            .map(|rank| (Some(rank), LogOf::Rank(rank)))
            .collect();
        if self.hosting == Hosting::Forked
            && (!logs.is_empty() || self.host_outcome(self.ranks.start) != Some(Outcome::Code(0)))
        {
            logs.push((None, LogOf::Host));
        }
        for (rank, log) in logs {
            if let Some(tail) = log_tail(&log.stderr(&self.run_dir)) {
                sink(RankReport::Stderr { rank, tail })?;
            }
        }
        Ok(())
    }

    fn kill(&mut self) -> Vec<u32> {
        self.kill_all(&mut Vec::new())
    }
}
