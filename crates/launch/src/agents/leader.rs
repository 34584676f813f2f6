//! An agent's connection to the leader of its job. The leader is the agent of rank 0.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use serde_json::Value;

use super::link::{AgentLine, BEAT, Link};
use super::message::AgentMessage;
use super::{JobPart, RendezvousError, SHUTDOWN_TIMEOUT, interface_of, rendezvous};
use crate::LaunchError;
use crate::channel::ChannelState;
use crate::job::JobRendezvous;
use crate::rank_report::{RankMessage, RankReport};
use crate::rank_share::{LOOPBACK, RankShare};
use crate::ranks::StopReason;
use zprobe_model::trace::{AgentLoss, Contents, Record};

/// The smallest length, in bytes, of a line that is checked for contents that the leader already has.
const LONG: usize = 4096;

/// An agent's connection to the leader of its job. The leader is the agent of rank 0.
#[derive(Debug)]
pub struct Leader {
    role: JobPart,
    link: Link,
    run_id: String,
    interface: String,
    is_lost: bool,
    /// The contents that were sent to the leader in the current run.
    sent_contents: Contents,
}

/// A request of the leader to another agent between two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderRequest {
    /// A run begins.
    Start {
        /// The id of the run that begins.
        run: String,
        /// The number of the repeat, if the run is one of several repeats.
        repeat: Option<usize>,
        /// The port of the ranks' TCPStore on the leader's machine; `None` if the user's commands start the ranks.
        port: Option<u16>,
    },
    /// The job is over, and all agents exit with this code.
    Over {
        /// The exit code of all agents.
        exit: u8,
    },
    /// The leader has ended the job before a run.
    Refused {
        /// The leader's reason to end the job.
        why: String,
    },
    /// The connection to the leader is lost.
    Lost,
}

/// A command of the leader to another agent during a run, or the loss of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaderCommand {
    /// Deliver a message from a rank of another agent.
    Deliver(RankMessage),
    /// Take the stacks of silent ranks.
    Look,
    /// End the processes of the run.
    End(StopReason),
    /// The leader is lost, for this reason.
    Lost(AgentLoss),
}

impl Leader {
    /// Connects to the leader of the job, and waits until all agents have connected.
    ///
    /// # Errors
    /// Fails if the leader is not found within `patience`, or if the leader ends the job.
    pub fn find(
        mut role: JobPart,
        settings: &Value,
        rendezvous: &JobRendezvous,
        patience: Duration,
    ) -> Result<Self, RendezvousError> {
        let own = role.announced(settings);
        let rendezvous::Welcome { link, run_id, index, interface } =
            rendezvous::attend(&own, rendezvous, patience)?;
        role.agent.index = index;
        let interface = match interface {
            Some(interface) => interface,
            None => interface_of(link.own_address()?).unwrap_or_else(|| LOOPBACK.to_owned()),
        };
        Ok(Self {
            role,
            link,
            run_id,
            interface,
            is_lost: false,
            sent_contents: Contents::default(),
        })
    }

    /// Returns the id of the run, or the common id of all repeats of the run.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the number of this agent.
    pub fn own_index(&self) -> usize {
        self.role.agent.index
    }

    /// Waits for the next request of the leader. The leader counts as lost if it sends nothing for the duration
    /// `silence`.
    pub fn next_request(&mut self, silence: Duration) -> LeaderRequest {
        if self.is_lost {
            return LeaderRequest::Lost;
        }
        self.link.heard = Instant::now();
        loop {
            match self.link.wait_for_message(self.link.heard + silence) {
                Ok(Some(AgentMessage::Start { run, repeat, port })) => {
                    self.sent_contents = Contents::default();
                    return LeaderRequest::Start { run, repeat, port };
                }
                Ok(Some(AgentMessage::Over { exit })) => return LeaderRequest::Over { exit },
                Ok(Some(AgentMessage::Refused { why })) => return LeaderRequest::Refused { why },
                // This message is about a run that is already over for this agent.
                Ok(Some(
                    AgentMessage::End { .. }
                    | AgentMessage::Beat { .. }
                    | AgentMessage::Look
                    | AgentMessage::RankMessage(_),
                )) => {}
                Ok(_) | Err(_) => return LeaderRequest::Lost,
            }
        }
    }

    /// Returns this agent's share of the ranks in a run whose TCPStore listens at `port`.
    pub(crate) fn place(&self, port: u16) -> Result<RankShare, LaunchError> {
        let master =
            self.link.address().map_err(LaunchError::system("the address of rank 0's machine"))?;
        Ok(self.role.place((master.to_string(), port), None, self.interface.clone()))
    }

    /// Returns the connection to the leader, with the events to poll for.
    pub(crate) fn awaited(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.link.as_fd(), self.link.awaited())
    }

    /// True if the outbox is full, so that no more lines of ranks should be read.
    pub(crate) fn is_full(&self) -> bool {
        !self.is_lost && self.link.is_full()
    }

    /// Passes a report on to the leader. A broken connection is noticed at the next read.
    pub(crate) fn tell(&mut self, report: &RankReport<'_>) {
        if self.is_lost {
            return;
        }
        let message = match report {
            RankReport::Line { rank, line: Ok(line) } => {
                let shorter = self.shorten(line);
                let _ = self.link.pass_on(*rank, shorter.as_deref().unwrap_or(line));
                return;
            }
            RankReport::Line { rank, line: Err(start) } => {
                AgentMessage::TooLong { rank: *rank, start: start.excerpt() }
            }
            RankReport::TooLong { rank, start } => {
                AgentMessage::TooLong { rank: *rank, start: start.clone() }
            }
            // The leader's own host imports the same software, and the report shows the leader's ranks.
            RankReport::Importing { .. } => return,
            RankReport::Gone { rank } => AgentMessage::Gone { rank: *rank },
            RankReport::LetGo { rank } => AgentMessage::LetGo { rank: *rank },
            RankReport::Event { rank, event } => {
                AgentMessage::Told { rank: *rank, event: Box::new(event.clone()) }
            }
            RankReport::Message(rank_message) => AgentMessage::RankMessage(rank_message.clone()),
            RankReport::Spawned { rank, pid, agent, t_ns } => {
                AgentMessage::Spawned { rank: *rank, pid: *pid, agent: *agent, t_ns: *t_ns }
            }
            RankReport::Ended { rank, outcome, t_ns } => {
                AgentMessage::Ended { rank: *rank, outcome: *outcome, t_ns: *t_ns }
            }
            RankReport::HostViolated { violation, line } => {
                AgentMessage::HostViolated { violation: *violation, line: line.clone() }
            }
            RankReport::Stderr { rank, tail } => {
                AgentMessage::LastWords { rank: *rank, tail: tail.clone() }
            }
        };
        let _ = self.link.say(&message);
    }

    /// Returns the line of a rank without the contents that this agent has already sent to the leader, or `None` if
    /// the line repeats no contents. Only long lines hold such contents.
    fn shorten(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.len() < LONG {
            return None;
        }
        let record: Record = serde_json::from_slice(line).ok()?;
        let event = self.sent_contents.shortened(&record.event)?;
        serde_json::to_vec(&Record { event, ..record }).ok()
    }

    /// Reports to the leader that all processes of this agent have ended.
    pub(crate) fn tell_idle(&mut self) {
        let _ = self.link.say(&AgentMessage::Idle);
    }

    /// Reports to the leader that the stacks of silent ranks were taken.
    pub(crate) fn tell_looked(&mut self) {
        let _ = self.link.say(&AgentMessage::Looked);
    }

    /// Reports to the leader that the user has interrupted this agent.
    pub(crate) fn tell_interrupted(&mut self) {
        let _ = self.link.say(&AgentMessage::Interrupted);
    }

    /// Reports to the leader that the run cannot take place on this machine.
    pub fn tell_failed(&mut self, message: String) {
        let _ = self.link.say(&AgentMessage::Failed { message });
        self.finish();
    }

    /// Reports to the leader that no further message of this run follows, and waits until all messages were sent.
    pub(crate) fn tell_done(&mut self, survivors: &[u32]) {
        let _ = self.link.say(&AgentMessage::Done { survivors: survivors.to_vec() });
        self.finish();
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while !self.is_lost && self.link.has_more() && self.link.wait_to_send(deadline) {}
    }

    /// True if the next heartbeat is due.
    pub(crate) fn beat_is_due(&self) -> bool {
        Instant::now() >= self.link.beat
    }

    /// Returns the time of the next heartbeat.
    pub(crate) fn next_beat(&self) -> Instant {
        self.link.beat
    }

    /// Sends a heartbeat. `starved` holds the time for which each rank had no CPU core since the last heartbeat.
    pub(crate) fn beat(&mut self, starved: Vec<(usize, Duration)>) {
        self.link.beat = Instant::now() + BEAT;
        let ns =
            |(rank, time): (usize, Duration)| (rank, u64::try_from(time.as_nanos()).unwrap_or(0));
        let starved = starved.into_iter().filter(|it| !it.1.is_zero()).map(ns).collect();
        let _ = self.link.say(&AgentMessage::Beat { starved });
    }

    /// Receives the commands of the leader.
    pub(crate) fn hear(&mut self) -> Vec<LeaderCommand> {
        let is_open = self.link.send().is_ok() && self.link.receive() == ChannelState::Open;
        let mut commands = Vec::new();
        while let Some(agent_line) = self.link.next() {
            let command = match agent_line {
                AgentLine::Message(message) => match *message {
                    AgentMessage::Beat { .. } => continue,
                    AgentMessage::RankMessage(rank_message) => LeaderCommand::Deliver(rank_message),
                    AgentMessage::Look => LeaderCommand::Look,
                    AgentMessage::End { why } => LeaderCommand::End(why),
                    _ => LeaderCommand::Lost(AgentLoss::Garbled),
                },
                AgentLine::Line { .. } | AgentLine::Garbled => {
                    LeaderCommand::Lost(AgentLoss::Garbled)
                }
            };
            let is_last = matches!(command, LeaderCommand::End(_) | LeaderCommand::Lost(_));
            commands.push(command);
            if is_last {
                return commands;
            }
        }
        if !is_open {
            commands.push(LeaderCommand::Lost(AgentLoss::Closed));
        }
        commands
    }

    /// True if the leader has sent nothing for the duration `silence`.
    pub(crate) fn is_silent(&self, silence: Duration) -> bool {
        self.link.heard.elapsed() > silence && !self.link.has_unread()
    }

    /// Marks the leader as lost, so that this process no longer waits until messages to the leader are sent.
    pub(crate) fn give_up(&mut self) {
        self.is_lost = true;
    }

    /// True if the leader was marked as lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns the address of the leader's machine, or a description of the machine if the address is unknown.
    pub(crate) fn machine(&self) -> String {
        self.link.address().map_or_else(|_| "the machine of rank 0".to_owned(), |it| it.to_string())
    }
}
