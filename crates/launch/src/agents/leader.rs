//! The agent of rank 0, as another agent sees it.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use serde_json::Value;

use super::link::{BEAT, Link, Said};
use super::message::Message;
use super::{FAREWELL, MeetingError, Part, interface_of, meeting};
use crate::LaunchError;
use crate::channel::State;
use crate::job::Meeting;
use crate::news::{Letter, News};
use crate::place::{LOOPBACK, Place};
use crate::ranks::Why;
use zprobe_model::trace::{AgentLoss, Contents, Record};

/// Bytes from which on a line is read for contents that the leader has been told already.
const LONG: usize = 4096;

/// The agent of rank 0, as another agent sees it.
#[derive(Debug)]
pub struct Leader {
    part: Part,
    link: Link,
    run_id: String,
    interface: String,
    is_lost: bool,
    /// Contents that the leader was told in the present run.
    told: Contents,
}

/// Request of the leader to another agent between two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A run begins.
    Start {
        /// Id of the run.
        run: String,
        /// Number of the repeat, if there are several.
        repeat: Option<usize>,
        /// Port of the ranks' TCPStore on the leader's machine; none where the ranks join.
        port: Option<u16>,
    },
    /// The job is over; all agents exit with this code.
    Over {
        /// The code.
        exit: u8,
    },
    /// The leader has ended the job before a run.
    Refused {
        /// Reason for it.
        why: String,
    },
    /// The leader is lost.
    Lost,
}

/// Command of the leader to another agent during a run, or its loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// A letter of a rank of another agent has come.
    Deliver(Letter),
    /// The stacks of silent ranks are to be taken.
    Look,
    /// The processes are to be ended.
    End(Why),
    /// The leader is lost.
    Lost(AgentLoss),
}

impl Leader {
    /// Finds the leader of the job, and waits until all agents have come.
    ///
    /// # Errors
    /// When it is not found within `patience`, or it ends everything.
    pub fn find(
        mut part: Part,
        settings: &Value,
        meeting: &Meeting,
        patience: Duration,
    ) -> Result<Self, MeetingError> {
        let own = part.announced(settings);
        let meeting::Welcomed { link, run_id, index, interface } =
            meeting::attend(&own, meeting, patience)?;
        part.agent.index = index;
        let interface = match interface {
            Some(interface) => interface,
            None => interface_of(link.own_address()?).unwrap_or_else(|| LOOPBACK.to_owned()),
        };
        Ok(Self { part, link, run_id, interface, is_lost: false, told: Contents::default() })
    }

    /// Id of the run, or of all its repeats.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Number of this agent.
    pub fn own_index(&self) -> usize {
        self.part.agent.index
    }

    /// Waits for the next request.
    pub fn next_request(&mut self, silence: Duration) -> Request {
        if self.is_lost {
            return Request::Lost;
        }
        self.link.heard = Instant::now();
        loop {
            match self.link.wait_for_message(self.link.heard + silence) {
                Ok(Some(Message::Start { run, repeat, port })) => {
                    self.told = Contents::default();
                    return Request::Start { run, repeat, port };
                }
                Ok(Some(Message::Over { exit })) => return Request::Over { exit },
                Ok(Some(Message::Refused { why })) => return Request::Refused { why },
                // Of a run that is over for this agent already.
                Ok(Some(
                    Message::End { .. } | Message::Beat { .. } | Message::Look | Message::Letter(_),
                )) => {}
                Ok(_) | Err(_) => return Request::Lost,
            }
        }
    }

    /// Place of this agent in a run for which the TCPStore is at `port`.
    pub(crate) fn place(&self, port: u16) -> Result<Place, LaunchError> {
        let master =
            self.link.address().map_err(LaunchError::system("the address of rank 0's machine"))?;
        Ok(self.part.place((master.to_string(), port), None, self.interface.clone()))
    }

    /// The connection with the events that it waits for.
    pub(crate) fn awaited(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.link.as_fd(), self.link.awaited())
    }

    /// True if so much waits to be sent that ranks should not be listened to.
    pub(crate) fn is_full(&self) -> bool {
        !self.is_lost && self.link.is_full()
    }

    /// Passes news on. A link that is broken shows when it is listened to.
    pub(crate) fn tell(&mut self, news: &News<'_>) {
        if self.is_lost {
            return;
        }
        let message = match news {
            News::Line { rank, line: Ok(line) } => {
                let shorter = self.shorten(line);
                let _ = self.link.pass_on(*rank, shorter.as_deref().unwrap_or(line));
                return;
            }
            News::Line { rank, line: Err(start) } => {
                Message::TooLong { rank: *rank, start: start.excerpt() }
            }
            News::TooLong { rank, start } => Message::TooLong { rank: *rank, start: start.clone() },
            // The leader's own host imports the same, and its ranks are those that are shown.
            News::Importing { .. } => return,
            News::Gone { rank } => Message::Gone { rank: *rank },
            News::LetGo { rank } => Message::LetGo { rank: *rank },
            News::Told { rank, event } => {
                Message::Told { rank: *rank, event: Box::new(event.clone()) }
            }
            News::Letter(letter) => Message::Letter(letter.clone()),
            News::Spawned { rank, pid, agent, t_ns } => {
                Message::Spawned { rank: *rank, pid: *pid, agent: *agent, t_ns: *t_ns }
            }
            News::Ended { rank, outcome, t_ns } => {
                Message::Ended { rank: *rank, outcome: *outcome, t_ns: *t_ns }
            }
            News::HostViolated { violation, line } => {
                Message::HostViolated { violation: *violation, line: line.clone() }
            }
            News::LastWords { rank, tail } => {
                Message::LastWords { rank: *rank, tail: tail.clone() }
            }
        };
        let _ = self.link.say(&message);
    }

    /// The line of a rank, stripped of contents that this agent has sent to the leader before. None if the line repeats no
    /// contents. Only long lines hold such contents.
    fn shorten(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.len() < LONG {
            return None;
        }
        let record: Record = serde_json::from_slice(line).ok()?;
        let event = self.told.shortened(&record.event)?;
        serde_json::to_vec(&Record { event, ..record }).ok()
    }

    /// Says that all processes have ended.
    pub(crate) fn tell_idle(&mut self) {
        let _ = self.link.say(&Message::Idle);
    }

    /// Says that the stacks of silent ranks were taken.
    pub(crate) fn tell_looked(&mut self) {
        let _ = self.link.say(&Message::Looked);
    }

    /// Says that the user has interrupted this agent.
    pub(crate) fn tell_interrupted(&mut self) {
        let _ = self.link.say(&Message::Interrupted);
    }

    /// Says that the run cannot take place here.
    pub fn tell_failed(&mut self, message: String) {
        let _ = self.link.say(&Message::Failed { message });
        self.finish();
    }

    /// Says that all was told, and waits until it was sent.
    pub(crate) fn tell_done(&mut self, survivors: &[u32]) {
        let _ = self.link.say(&Message::Done { survivors: survivors.to_vec() });
        self.finish();
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        while !self.is_lost && self.link.has_more() && self.link.wait_to_send(deadline) {}
    }

    /// True if it is time for a sign of life.
    pub(crate) fn beat_is_due(&self) -> bool {
        Instant::now() >= self.link.beat
    }

    /// Time of the next sign of life.
    pub(crate) fn next_beat(&self) -> Instant {
        self.link.beat
    }

    /// Gives a sign of life, with the time for which ranks had no core since the last one.
    pub(crate) fn beat(&mut self, starved: Vec<(usize, Duration)>) {
        self.link.beat = Instant::now() + BEAT;
        let ns =
            |(rank, time): (usize, Duration)| (rank, u64::try_from(time.as_nanos()).unwrap_or(0));
        let starved = starved.into_iter().filter(|it| !it.1.is_zero()).map(ns).collect();
        let _ = self.link.say(&Message::Beat { starved });
    }

    /// Hears what the leader has sent.
    pub(crate) fn hear(&mut self) -> Vec<Command> {
        let is_open = self.link.send().is_ok() && self.link.receive() == State::Open;
        let mut commands = Vec::new();
        while let Some(said) = self.link.next() {
            let command = match said {
                Said::Message(message) => match *message {
                    Message::Beat { .. } => continue,
                    Message::Letter(letter) => Command::Deliver(letter),
                    Message::Look => Command::Look,
                    Message::End { why } => Command::End(why),
                    _ => Command::Lost(AgentLoss::Garbled),
                },
                Said::Line { .. } | Said::Garbled => Command::Lost(AgentLoss::Garbled),
            };
            let is_last = matches!(command, Command::End(_) | Command::Lost(_));
            commands.push(command);
            if is_last {
                return commands;
            }
        }
        if !is_open {
            commands.push(Command::Lost(AgentLoss::Closed));
        }
        commands
    }

    /// True if the leader gave no sign of life for `silence`.
    pub(crate) fn is_silent(&self, silence: Duration) -> bool {
        self.link.heard.elapsed() > silence && !self.link.has_unread()
    }

    /// Gives the leader up: nothing that is said waits for it any more.
    pub(crate) fn give_up(&mut self) {
        self.is_lost = true;
    }

    /// True if the leader was given up.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Address of the leader's machine, in words.
    pub(crate) fn machine(&self) -> String {
        self.link.address().map_or_else(|_| "the machine of rank 0".to_owned(), |it| it.to_string())
    }
}
