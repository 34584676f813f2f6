//! The leader's connections to all other agents of its job.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use serde_json::Value;

use super::link::{AgentLine, BEAT, Link};
use super::message::{Agent, AgentMessage};
use super::{JobPart, RendezvousError, SHUTDOWN_TIMEOUT, interface_of, rendezvous};
use crate::LaunchError;
use crate::channel::ChannelState;
use crate::job::JobRendezvous;
use crate::rank_report::{RankMessage, RankReport};
use crate::rank_share::{LOOPBACK, RankShare};
use crate::ranks::StopReason;
use crate::wait::wait;
use zprobe_model::spec::MOST_RANKS;
use zprobe_model::trace::{AgentLoss, Event};

/// The leader's connections to all other agents of its job.
#[derive(Debug)]
pub struct Team {
    role: JobPart,
    members: Vec<TeamMember>,
    /// The address at which all other agents reach this machine; `None` if they reach it at different addresses.
    address: Option<IpAddr>,
    interface: String,
    /// Messages from ranks of other agents that are not delivered on this machine yet.
    rank_messages: Vec<RankMessage>,
}

#[derive(Debug)]
struct TeamMember {
    agent: Agent,
    /// The known ranks of the agent.
    ranks: BTreeSet<usize>,
    /// True once the agent has reported all facts about silent ranks.
    has_looked: bool,
    clock_ns: i64,
    link: Link,
    state: AgentProgress,
}

/// The progress of an agent in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentProgress {
    /// Processes of the agent are still running.
    Busy,
    /// All processes of the agent have ended.
    Idle,
    /// The agent has sent all messages about the run.
    Done,
    /// The connection to the agent, or its process, is gone.
    Lost,
}

/// A message of another agent to the leader, or the loss of the agent.
pub(crate) enum AgentNotice<'a> {
    /// A report about a rank of the agent.
    Report(RankReport<'a>),
    /// The times for which ranks of the agent had no CPU core.
    Starved(Vec<(usize, Duration)>),
    /// The user has interrupted the agent.
    Interrupted,
    /// The agent could not start its ranks or its command.
    Failed { machine: &'a str, message: String },
    /// The run is over for the agent. The list holds the ids of processes that SIGKILL did not end.
    Done(Vec<u32>),
    /// The agent is lost.
    Lost { agent: &'a Agent, ranks: &'a BTreeSet<usize>, why: AgentLoss },
}

impl Team {
    /// Waits, as the leader, for all other agents of the job, and sends them the id of the run.
    ///
    /// # Errors
    /// Fails if an agent does not connect within `patience`, or announces a different run.
    pub fn gather(
        role: JobPart,
        settings: &Value,
        run_id: &str,
        rendezvous: &JobRendezvous,
        patience: Duration,
    ) -> Result<Self, RendezvousError> {
        let own = role.announced(settings);
        let arrived = rendezvous::lead(&own, rendezvous, patience)?;
        let addresses: Vec<IpAddr> =
            arrived.iter().map(|it| it.link.own_address()).collect::<io::Result<_>>()?;
        let address =
            addresses.first().copied().filter(|first| addresses.iter().all(|it| it == first));
        let reachable = addresses.iter().find(|it| !it.is_loopback());
        let interface = reachable.and_then(|it| interface_of(*it));
        let mut members = Vec::new();
        for (arrived, address) in arrived.into_iter().zip(&addresses) {
            let mut link = arrived.link;
            // An agent on this machine may reach the leader over loopback, but agents on other machines cannot.
            let interface = interface.clone().filter(|_| address.is_loopback());
            let agent = arrived.announced.agent;
            let run = run_id.to_owned();
            // A broken connection is noticed at the next read.
            let _ = link.say(&AgentMessage::Welcome { run, index: agent.index, interface });
            members.push(TeamMember {
                ranks: agent.ranks.clone().collect(),
                agent,
                has_looked: false,
                clock_ns: arrived.clock_ns,
                link,
                state: AgentProgress::Done,
            });
        }
        let interface = interface.unwrap_or_else(|| LOOPBACK.to_owned());
        Ok(Self { role, members, address, interface, rank_messages: Vec::new() })
    }

    /// Begins a run on all agents, and returns the leader's share of its ranks.
    pub(crate) fn begin(
        &mut self,
        run_id: &str,
        repeat: Option<usize>,
    ) -> Result<RankShare, LaunchError> {
        let all = match self.members.first().and_then(|it| it.link.own_address().ok()) {
            Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let listen = || {
            let store = TcpListener::bind((self.address.unwrap_or(all), 0))?;
            let port = store.local_addr()?.port();
            Ok::<_, io::Error>((store, port))
        };
        let (store, port) =
            listen().map_err(LaunchError::system("a socket for the TCPStore of the ranks"))?;
        self.start(run_id, repeat, Some(port));
        let own = self.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(self.role.place((own.to_string(), port), Some(store), self.interface.clone()))
    }

    /// Begins, on all agents, a run of commands whose processes join as its ranks.
    pub(crate) fn begin_commands(&mut self, run_id: &str) {
        self.start(run_id, None, None);
    }

    fn start(&mut self, run_id: &str, repeat: Option<usize>, port: Option<u16>) {
        for member in &mut self.members {
            member.state = AgentProgress::Busy;
            member.link.heard = Instant::now();
            // A broken connection is noticed at the next read.
            let _ = member.link.say(&AgentMessage::Start { run: run_id.to_owned(), repeat, port });
        }
    }

    /// Returns all agents, the leader first, each with the time in nanoseconds by which the agent's clock is ahead of
    /// the leader's clock.
    pub(crate) fn agents(&self) -> impl Iterator<Item = (&Agent, i64)> {
        let others = self.members.iter().map(|member| (&member.agent, member.clock_ns));
        [(&self.role.agent, 0)].into_iter().chain(others)
    }

    /// True if an agent is lost, so that no further run is possible.
    pub fn has_lost(&self) -> bool {
        self.members.iter().any(|member| matches!(member.state, AgentProgress::Lost))
    }

    /// Returns the descriptors of all connections with the events to poll for; `None` for agents that are done or
    /// lost.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = Option<(BorrowedFd<'_>, PollFlags)>> {
        self.members.iter().map(|member| {
            let is_there = !matches!(member.state, AgentProgress::Lost | AgentProgress::Done);
            is_there.then(|| (member.link.as_fd(), member.link.awaited()))
        })
    }

    /// True if all processes have ended on the agents that are not lost.
    pub(crate) fn is_idle(&self) -> bool {
        self.members.iter().all(|member| member.state != AgentProgress::Busy)
    }

    /// True if all agents that are not lost have sent all messages about the run.
    pub(crate) fn is_done(&self) -> bool {
        self.members.iter().all(|it| matches!(it.state, AgentProgress::Done | AgentProgress::Lost))
    }

    /// Receives the messages of the agent at `index`. Messages between ranks are passed on to the other agents at
    /// once.
    pub(crate) fn hear(
        &mut self,
        index: usize,
        to: &mut dyn FnMut(AgentNotice<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let mut rank_messages = Vec::new();
        let loss = self.members[index].receive(&mut rank_messages, to)?;
        for rank_message in rank_messages {
            self.pass_on(&rank_message, Some(index));
            self.rank_messages.push(rank_message);
        }
        self.lose(index, loss, to)
    }

    /// Receives messages of all agents until `is_enough` returns true or until `deadline`. Meanwhile heartbeats are
    /// sent and expected as in [`Team::beat`].
    pub(crate) fn hear_until(
        &mut self,
        is_enough: fn(&Self) -> bool,
        deadline: Instant,
        silence: Duration,
        to: &mut dyn FnMut(AgentNotice<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let mut next = Instant::now();
        while !is_enough(self) && Instant::now() <= deadline {
            let ready = wait(self.awaited(), None, next.min(deadline))
                .map_err(LaunchError::system("the wait for messages of other agents"))?;
            for link in ready.descriptors {
                self.hear(link, to)?;
            }
            // The messages that arrived while this process was busy are read before an agent can count as silent.
            next = self.beat(silence, to)?;
        }
        Ok(())
    }

    /// Passes a message of a rank on to all agents except the agent at `from`.
    fn pass_on(&mut self, rank_message: &RankMessage, from: Option<usize>) {
        let others = self.members.iter_mut().enumerate().filter(|(index, _)| Some(*index) != from);
        for (_, member) in others.filter(|(_, it)| it.state == AgentProgress::Busy) {
            // A broken connection is noticed at the next read.
            let _ = member.link.say(&AgentMessage::RankMessage(rank_message.clone()));
        }
    }

    /// Sends a message of a rank of this process to all other agents.
    pub(crate) fn post(&mut self, rank_message: &RankMessage) {
        self.pass_on(rank_message, None);
    }

    /// Returns the messages to the ranks of this process that arrived since the last call.
    pub(crate) fn take_rank_messages(&mut self) -> Vec<RankMessage> {
        std::mem::take(&mut self.rank_messages)
    }

    /// Asks all agents for the stacks of silent ranks.
    pub(crate) fn ask_to_look(&mut self) {
        for member in &mut self.members {
            member.has_looked = false;
            let _ = member.link.say(&AgentMessage::Look);
        }
    }

    /// True if all agents that are not lost have reported all facts about silent ranks.
    pub(crate) fn have_looked(&self) -> bool {
        let is_left =
            |it: &&TeamMember| matches!(it.state, AgentProgress::Busy | AgentProgress::Idle);
        self.members.iter().filter(is_left).all(|it| it.has_looked)
    }

    /// Sends heartbeats, and marks agents as lost that sent nothing for the duration `silence`. Returns the time of the
    /// next heartbeat.
    pub(crate) fn beat(
        &mut self,
        silence: Duration,
        to: &mut dyn FnMut(AgentNotice<'_>) -> Result<(), LaunchError>,
    ) -> Result<Instant, LaunchError> {
        let now = Instant::now();
        let mut next = now + BEAT;
        for index in 0..self.members.len() {
            let TeamMember { link, state, .. } = &mut self.members[index];
            if matches!(state, AgentProgress::Lost | AgentProgress::Done) {
                continue;
            }
            if now >= link.beat {
                link.beat = now + BEAT;
                // A broken connection is noticed at the next read.
                let _ = link.say(&AgentMessage::Beat { starved: Vec::new() });
            }
            next = next.min(link.beat);
            let is_silent =
                now.saturating_duration_since(link.heard) > silence && !link.has_unread();
            self.lose(index, is_silent.then_some(AgentLoss::Silent), to)?;
        }
        Ok(next)
    }

    fn lose(
        &mut self,
        index: usize,
        loss: Option<AgentLoss>,
        to: &mut dyn FnMut(AgentNotice<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let Some(why) = loss else { return Ok(()) };
        let member = &mut self.members[index];
        member.state = AgentProgress::Lost;
        if member.agent.ranks.is_empty() {
            let rank_messages: Vec<RankMessage> =
                member.ranks.iter().copied().map(RankMessage::of_gone).collect();
            rank_messages.iter().for_each(|rank_message| self.pass_on(rank_message, Some(index)));
            self.rank_messages.extend(rank_messages);
        }
        let member = &self.members[index];
        to(AgentNotice::Lost { agent: &member.agent, ranks: &member.ranks, why })
    }

    /// Asks all agents to end their processes. Returns the time until which agents may send their remaining messages.
    pub(crate) fn end(&mut self, why: StopReason) -> Instant {
        for member in &mut self.members {
            if member.state != AgentProgress::Lost {
                let _ = member.link.say(&AgentMessage::End { why });
            }
        }
        Instant::now() + SHUTDOWN_TIMEOUT
    }

    /// Marks the agents as lost that have not sent all messages about the run.
    pub(crate) fn give_up(
        &mut self,
        to: &mut dyn FnMut(AgentNotice<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        for index in 0..self.members.len() {
            let is_left =
                !matches!(self.members[index].state, AgentProgress::Done | AgentProgress::Lost);
            self.lose(index, is_left.then_some(AgentLoss::Silent), to)?;
        }
        Ok(())
    }

    /// Tells all agents that the job is over, and the code with which they exit.
    pub fn over(mut self, exit: u8) {
        for member in &mut self.members {
            let _ = member.link.say(&AgentMessage::Over { exit });
        }
    }

    /// Ends the job before a run, and tells all agents the reason.
    pub fn refuse(mut self, why: &str) {
        rendezvous::refuse(self.members.iter_mut().map(|member| &mut member.link), why);
    }
}

impl TeamMember {
    /// Receives the messages of this agent. Returns the reason if the agent turns out to be lost.
    fn receive(
        &mut self,
        rank_messages: &mut Vec<RankMessage>,
        to: &mut dyn FnMut(AgentNotice<'_>) -> Result<(), LaunchError>,
    ) -> Result<Option<AgentLoss>, LaunchError> {
        let Self { agent, ranks, has_looked, link, state, .. } = self;
        if *state == AgentProgress::Lost {
            return Ok(None);
        }
        let is_open = link.send().is_ok() && link.receive() == ChannelState::Open;
        let joins = agent.ranks.is_empty();
        while let Some(agent_line) = link.next() {
            let message = match agent_line {
                AgentLine::Line { rank, line } if ranks.contains(&rank) => {
                    to(AgentNotice::Report(RankReport::Line { rank, line: Ok(line) }))?;
                    continue;
                }
                AgentLine::Message(message) => *message,
                AgentLine::Line { .. } | AgentLine::Garbled => return Ok(Some(AgentLoss::Garbled)),
            };
            if let (AgentMessage::Spawned { rank, .. }, true) = (&message, joins) {
                ranks.extend(Some(*rank).filter(|rank| *rank < MOST_RANKS));
            }
            let is_own = |rank: &usize| ranks.contains(rank);
            let notice = match message {
                AgentMessage::Spawned { rank, pid, agent, t_ns } if is_own(&rank) => {
                    AgentNotice::Report(RankReport::Spawned { rank, pid, agent, t_ns })
                }
                AgentMessage::Ended { rank, outcome, t_ns } if is_own(&rank) => {
                    AgentNotice::Report(RankReport::Ended { rank, outcome, t_ns })
                }
                AgentMessage::Gone { rank } if is_own(&rank) => {
                    AgentNotice::Report(RankReport::Gone { rank })
                }
                AgentMessage::LetGo { rank } if is_own(&rank) => {
                    AgentNotice::Report(RankReport::LetGo { rank })
                }
                AgentMessage::Told { rank, event }
                    if joins && rank.iter().all(is_own) && is_command_event(&event) =>
                {
                    AgentNotice::Report(RankReport::Event { rank, event: *event })
                }
                AgentMessage::TooLong { rank, start } if is_own(&rank) => {
                    AgentNotice::Report(RankReport::TooLong { rank, start })
                }
                AgentMessage::LastWords { rank, tail } if rank.iter().all(is_own) => {
                    AgentNotice::Report(RankReport::Stderr { rank, tail })
                }
                AgentMessage::HostViolated { violation, line } => {
                    AgentNotice::Report(RankReport::HostViolated { violation, line })
                }
                AgentMessage::Beat { starved } if starved.iter().all(|(rank, _)| is_own(rank)) => {
                    let time = |(rank, ns)| (rank, Duration::from_nanos(ns));
                    AgentNotice::Starved(starved.into_iter().map(time).collect())
                }
                AgentMessage::RankMessage(rank_message) => {
                    rank_messages.push(rank_message);
                    continue;
                }
                AgentMessage::Looked => {
                    *has_looked = true;
                    continue;
                }
                AgentMessage::Idle => {
                    *state = AgentProgress::Idle;
                    continue;
                }
                AgentMessage::Interrupted => AgentNotice::Interrupted,
                AgentMessage::Failed { message } => {
                    *state = AgentProgress::Done;
                    AgentNotice::Failed { machine: &agent.machine, message }
                }
                AgentMessage::Done { survivors } => {
                    *state = AgentProgress::Done;
                    AgentNotice::Done(survivors)
                }
                _ => return Ok(Some(AgentLoss::Garbled)),
            };
            to(notice)?;
        }
        Ok((!is_open && *state != AgentProgress::Done).then_some(AgentLoss::Closed))
    }
}

/// True for an event that an agent may report about the ranks of its command (`launch::joining`).
fn is_command_event(event: &Event) -> bool {
    matches!(
        event,
        Event::Failed { .. }
            | Event::StackTaken { .. }
            | Event::RankStopped { .. }
            | Event::CommandEnded { .. }
    )
}
