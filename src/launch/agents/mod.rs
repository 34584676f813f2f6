//! Agents: zprobe processes on one or many machines, each of which starts some of the ranks of a run.
//!
//! The agent of rank 0 leads. It listens where the environment says that the processes of the job meet;
//! the others connect to it, and each proves to the other that it knows the token of the job
//! (`meeting.rs`). After that one connection for each agent carries everything (`link.rs`, `message.rs`): the
//! leader says when a run begins and ends, and an agent passes on every line of its ranks, and what
//! becomes of their processes. So the leader checks, watches and records all ranks alike, wherever they
//! are. Bytes on a connection, and memory of the leader, grow with the number of ranks alone.
//!
//! An agent records its own ranks too, until the run is over: if the leader is lost, it reports what it
//! knows.

mod link;
mod meeting;
mod message;
mod tcp_store;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::poll::PollFlags;
use nix::unistd::gethostname;

use link::{BEAT, Link, Said};
use meeting::Announced;
pub use meeting::MeetingError;
pub use message::Agent;
use message::Message;

use super::LaunchError;
use super::channel::State;
use super::group::KILL_GRACE;
use super::news::News;
use super::place::{LOOPBACK, Place};
use crate::job::Meeting;
use crate::spec::RunSpec;
use crate::trace::{AgentLoss, Contents, Record};

/// Time that another agent may take to end its processes and to tell the rest.
const FAREWELL: Duration = Duration::from_secs(20).saturating_add(KILL_GRACE);

/// Bytes from which on a line is read for contents that the leader has been told already.
const LONG: usize = 4096;

/// The part of a job that this process performs.
#[derive(Clone, Debug)]
pub struct Part {
    /// This process and its ranks.
    pub agent: Agent,
    /// Number of agents.
    pub agents: usize,
    /// Local rank of the first of its ranks, and number of ranks on its machine.
    pub local: (usize, usize),
}

impl Part {
    /// The part of the process with this number, each of which starts `ranks` ranks.
    pub fn new(index: usize, agents: usize, ranks: usize, local: (usize, usize)) -> Self {
        let machine =
            gethostname().map_or_else(|_| String::new(), |it| it.to_string_lossy().into());
        let agent = Agent { index, ranks: index * ranks..(index + 1) * ranks, machine };
        Self { agent, agents, local }
    }

    /// True if this process leads.
    pub fn leads(&self) -> bool {
        self.agent.index == 0
    }

    fn announced(&self, spec: &RunSpec, repeats: usize) -> Result<Announced, MeetingError> {
        let settings = serde_json::json!({ "spec": spec, "repeats": repeats }).to_string();
        Ok(Announced { agent: self.agent.clone(), agents: self.agents, settings })
    }

    fn place(&self, master: (String, u16), store: Option<TcpListener>, interface: String) -> Place {
        let (first_local, local_world_size) = self.local;
        let ranks = self.agent.ranks.clone();
        Place { ranks, first_local, local_world_size, master, store, interface }
    }
}

/// All other agents, as the leader sees them.
#[derive(Debug)]
pub struct Team {
    part: Part,
    members: Vec<Member>,
    /// Address at which the others reach this machine; none if they use several.
    address: Option<IpAddr>,
    interface: String,
}

#[derive(Debug)]
struct Member {
    agent: Agent,
    clock_ns: i64,
    link: Link,
    state: Progress,
}

/// Progress of an agent in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Processes of the agent are left.
    Busy,
    /// Its processes have ended.
    Idle,
    /// Nothing of it is missing.
    Done,
    /// Connection or process of the agent is gone.
    Lost,
}

/// Message of another agent to the leader, or its loss.
pub(super) enum Heard<'a> {
    /// News of a rank.
    News(News<'a>),
    /// Ranks had no core for this long.
    Starved(Vec<(usize, Duration)>),
    /// The user has interrupted the agent.
    Interrupted,
    /// Its ranks could not be started.
    Failed { machine: &'a str, message: String },
    /// The run is over for it; processes that did not die.
    Done(Vec<u32>),
    /// The agent is lost.
    Lost { agent: &'a Agent, why: AgentLoss },
}

impl Team {
    /// Waits for all other agents of the job, as the leader, and tells them the id of the run.
    ///
    /// # Errors
    /// When one does not come within `patience`, or is about to run something else.
    pub fn gather(
        part: Part,
        spec: &RunSpec,
        repeats: usize,
        run_id: &str,
        meeting: &Meeting,
        patience: Duration,
    ) -> Result<Self, MeetingError> {
        let own = part.announced(spec, repeats)?;
        let came = meeting::lead(&own, meeting, patience)?;
        let addresses: Vec<IpAddr> =
            came.iter().map(|it| it.link.own_address()).collect::<io::Result<_>>()?;
        let address =
            addresses.first().copied().filter(|first| addresses.iter().all(|it| it == first));
        let beyond = addresses.iter().find(|it| !it.is_loopback());
        let interface = beyond.and_then(|it| interface_of(*it));
        let mut members = Vec::new();
        for (came, address) in came.into_iter().zip(&addresses) {
            let mut link = came.link;
            // An agent on this machine may reach it over loopback, where no other machine does.
            let interface = interface.clone().filter(|_| address.is_loopback());
            link.say(&Message::Welcome { run: run_id.to_owned(), interface })?;
            let agent = came.announced.agent;
            members.push(Member { agent, clock_ns: came.clock_ns, link, state: Progress::Done });
        }
        let interface = interface.unwrap_or_else(|| LOOPBACK.to_owned());
        Ok(Self { part, members, address, interface })
    }

    /// Begins a run on all agents, and returns the place of the leader in it.
    pub(super) fn begin(
        &mut self,
        run_id: &str,
        repeat: Option<usize>,
    ) -> Result<Place, LaunchError> {
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
            listen().map_err(LaunchError::system("a socket for the ranks to meet at"))?;
        for member in &mut self.members {
            member.state = Progress::Busy;
            member.link.heard = Instant::now();
            // A link that is broken shows when it is listened to.
            let _ = member.link.say(&Message::Start { run: run_id.to_owned(), repeat, port });
        }
        let own = self.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(self.part.place((own.to_string(), port), Some(store), self.interface.clone()))
    }

    /// All agents with the time by which their clocks are ahead, in nanoseconds; the leader is the first.
    pub(super) fn agents(&self) -> impl Iterator<Item = (&Agent, i64)> {
        let others = self.members.iter().map(|member| (&member.agent, member.clock_ns));
        [(&self.part.agent, 0)].into_iter().chain(others)
    }

    /// True if an agent is lost, so that there can be no further run.
    pub fn has_lost(&self) -> bool {
        self.members.iter().any(|member| matches!(member.state, Progress::Lost))
    }

    /// Descriptors of all connections with the events that they wait for; none of those that are lost.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Option<(BorrowedFd<'_>, PollFlags)>> {
        self.members.iter().map(|member| {
            let is_there = !matches!(member.state, Progress::Lost | Progress::Done);
            is_there.then(|| (member.link.as_fd(), member.link.awaited()))
        })
    }

    /// True if the processes of all agents that are left have ended.
    pub(super) fn is_idle(&self) -> bool {
        self.members.iter().all(|member| member.state != Progress::Busy)
    }

    /// True if all agents that are left have told all.
    pub(super) fn is_done(&self) -> bool {
        self.members.iter().all(|it| matches!(it.state, Progress::Done | Progress::Lost))
    }

    /// Hears what the agent at `index` has sent.
    pub(super) fn hear(
        &mut self,
        index: usize,
        to: &mut dyn FnMut(Heard<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let Member { agent, link, state, .. } = &mut self.members[index];
        if *state == Progress::Lost {
            return Ok(());
        }
        let is_open = link.send().is_ok() && link.receive() == State::Open;
        let is_own = |rank: &usize| agent.ranks.contains(rank);
        let mut loss = None;
        while let Some(said) = link.next() {
            let heard = match said {
                Said::Line { rank, line } if is_own(&rank) => {
                    Heard::News(News::Line { rank, line: Ok(line) })
                }
                Said::Message(message) => match *message {
                    Message::Spawned { rank, pid, t_ns } if is_own(&rank) => {
                        Heard::News(News::Spawned { rank, pid, t_ns })
                    }
                    Message::Ended { rank, outcome, t_ns } if is_own(&rank) => {
                        Heard::News(News::Ended { rank, outcome, t_ns })
                    }
                    Message::TooLong { rank, start } if is_own(&rank) => {
                        Heard::News(News::TooLong { rank, start })
                    }
                    Message::LastWords { rank, tail } if rank.iter().all(is_own) => {
                        Heard::News(News::LastWords { rank, tail })
                    }
                    Message::HostViolated { violation, line } => {
                        Heard::News(News::HostViolated { violation, line })
                    }
                    Message::Beat { starved } if starved.iter().all(|(rank, _)| is_own(rank)) => {
                        let time = |(rank, ns)| (rank, Duration::from_nanos(ns));
                        Heard::Starved(starved.into_iter().map(time).collect())
                    }
                    Message::Idle => {
                        *state = Progress::Idle;
                        continue;
                    }
                    Message::Interrupted => Heard::Interrupted,
                    Message::Failed { message } => {
                        *state = Progress::Done;
                        Heard::Failed { machine: &agent.machine, message }
                    }
                    Message::Done { survivors } => {
                        *state = Progress::Done;
                        Heard::Done(survivors)
                    }
                    _ => {
                        loss = Some(AgentLoss::Garbled);
                        break;
                    }
                },
                Said::Line { .. } | Said::Garbled => {
                    loss = Some(AgentLoss::Garbled);
                    break;
                }
            };
            to(heard)?;
        }
        if !is_open && *state != Progress::Done {
            loss.get_or_insert(AgentLoss::Closed);
        }
        self.lose(index, loss, to)
    }

    /// Gives signs of life, and finds agents that gave none for `silence`. Returns the time of the next sign.
    pub(super) fn beat(
        &mut self,
        silence: Duration,
        to: &mut dyn FnMut(Heard<'_>) -> Result<(), LaunchError>,
    ) -> Result<Instant, LaunchError> {
        let now = Instant::now();
        let mut next = now + BEAT;
        for index in 0..self.members.len() {
            let Member { link, state, .. } = &mut self.members[index];
            if matches!(state, Progress::Lost | Progress::Done) {
                continue;
            }
            if now >= link.beat {
                link.beat = now + BEAT;
                // A link that is broken shows when it is listened to.
                let _ = link.say(&Message::Beat { starved: Vec::new() });
            }
            next = next.min(link.beat);
            let is_silent = now.saturating_duration_since(link.heard) > silence;
            self.lose(index, is_silent.then_some(AgentLoss::Silent), to)?;
        }
        Ok(next)
    }

    fn lose(
        &mut self,
        index: usize,
        loss: Option<AgentLoss>,
        to: &mut dyn FnMut(Heard<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        let Some(why) = loss else { return Ok(()) };
        let member = &mut self.members[index];
        member.state = Progress::Lost;
        to(Heard::Lost { agent: &member.agent, why })
    }

    /// Asks all agents to end their processes. Returns the time until which they may tell the rest.
    pub(super) fn end(&mut self) -> Instant {
        for member in &mut self.members {
            if member.state != Progress::Lost {
                let _ = member.link.say(&Message::End);
            }
        }
        Instant::now() + FAREWELL
    }

    /// Takes agents that have not told all until now for lost.
    pub(super) fn give_up(
        &mut self,
        to: &mut dyn FnMut(Heard<'_>) -> Result<(), LaunchError>,
    ) -> Result<(), LaunchError> {
        for index in 0..self.members.len() {
            let is_left = !matches!(self.members[index].state, Progress::Done | Progress::Lost);
            self.lose(index, is_left.then_some(AgentLoss::Silent), to)?;
        }
        Ok(())
    }

    /// Tells all agents that everything is over, and the code with which all exit.
    pub fn over(mut self, exit: u8) {
        for member in &mut self.members {
            let _ = member.link.say(&Message::Over { exit });
        }
    }

    /// Tells all agents that everything is over before a run, and why.
    pub fn refuse(mut self, why: &str) {
        meeting::refuse(self.members.iter_mut().map(|member| &mut member.link), why);
    }
}

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
        /// Port of the ranks' TCPStore on the leader's machine.
        port: u16,
    },
    /// Everything is over; all exit with this code.
    Over {
        /// The code.
        exit: u8,
    },
    /// Everything is over before a run.
    Refused {
        /// Reason for it.
        why: String,
    },
    /// The leader is lost.
    Lost,
}

/// Command of the leader to another agent during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// The run goes on.
    GoOn,
    /// The processes are to be ended.
    End,
    /// The leader is lost.
    Lost(AgentLoss),
}

impl Leader {
    /// Finds the leader of the job, and waits until all agents have come.
    ///
    /// # Errors
    /// When it is not found within `patience`, or it ends everything.
    pub fn find(
        part: Part,
        spec: &RunSpec,
        repeats: usize,
        meeting: &Meeting,
        patience: Duration,
    ) -> Result<Self, MeetingError> {
        let own = part.announced(spec, repeats)?;
        let (link, run_id, interface) = meeting::attend(&own, meeting, patience)?;
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
                Ok(Some(Message::End | Message::Beat { .. })) => {}
                Ok(_) | Err(_) => return Request::Lost,
            }
        }
    }

    /// Place of this agent in a run for which the TCPStore is at `port`.
    pub(super) fn place(&self, port: u16) -> Result<Place, LaunchError> {
        let master =
            self.link.address().map_err(LaunchError::system("the address of rank 0's machine"))?;
        Ok(self.part.place((master.to_string(), port), None, self.interface.clone()))
    }

    /// The connection with the events that it waits for.
    pub(super) fn awaited(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.link.as_fd(), self.link.awaited())
    }

    /// True if so much waits to be sent that ranks should not be listened to.
    pub(super) fn is_full(&self) -> bool {
        self.link.is_full()
    }

    /// Passes news on. A link that is broken shows when it is listened to.
    pub(super) fn tell(&mut self, news: &News<'_>) {
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
            // Of ranks that join, which no other agent leads.
            News::Gone { .. } | News::LetGo { .. } | News::Told { .. } => return,
            News::Spawned { rank, pid, t_ns } => {
                Message::Spawned { rank: *rank, pid: *pid, t_ns: *t_ns }
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

    /// The line of a rank without what the leader has heard from this agent already; none if it has not. Only
    /// long lines can hold such a thing.
    fn shorten(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.len() < LONG {
            return None;
        }
        let record: Record = serde_json::from_slice(line).ok()?;
        let event = self.told.shortened(&record.event)?;
        serde_json::to_vec(&Record { event, ..record }).ok()
    }

    /// Says that all processes have ended.
    pub(super) fn tell_idle(&mut self) {
        let _ = self.link.say(&Message::Idle);
    }

    /// Says that the user has interrupted this agent.
    pub(super) fn tell_interrupted(&mut self) {
        let _ = self.link.say(&Message::Interrupted);
    }

    /// Says that the run cannot take place here.
    pub fn tell_failed(&mut self, message: String) {
        let _ = self.link.say(&Message::Failed { message });
        self.finish();
    }

    /// Says that all was told, and waits until it was sent.
    pub(super) fn tell_done(&mut self, survivors: &[u32]) {
        let _ = self.link.say(&Message::Done { survivors: survivors.to_vec() });
        self.finish();
    }

    fn finish(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        while !self.is_lost && self.link.has_more() && self.link.wait_to_send(deadline) {}
    }

    /// True if it is time for a sign of life.
    pub(super) fn beat_is_due(&self) -> bool {
        Instant::now() >= self.link.beat
    }

    /// Time of the next sign of life.
    pub(super) fn next_beat(&self) -> Instant {
        self.link.beat
    }

    /// Gives a sign of life, with the time for which ranks had no core since the last one.
    pub(super) fn beat(&mut self, starved: Vec<(usize, Duration)>) {
        self.link.beat = Instant::now() + BEAT;
        let ns =
            |(rank, time): (usize, Duration)| (rank, u64::try_from(time.as_nanos()).unwrap_or(0));
        let starved = starved.into_iter().filter(|it| !it.1.is_zero()).map(ns).collect();
        let _ = self.link.say(&Message::Beat { starved });
    }

    /// Hears what the leader has sent.
    pub(super) fn hear(&mut self) -> Command {
        let is_open = self.link.send().is_ok() && self.link.receive() == State::Open;
        while let Some(said) = self.link.next() {
            match said {
                Said::Message(message) => match *message {
                    Message::Beat { .. } => {}
                    Message::End => return Command::End,
                    _ => return Command::Lost(AgentLoss::Garbled),
                },
                Said::Line { .. } | Said::Garbled => return Command::Lost(AgentLoss::Garbled),
            }
        }
        if is_open { Command::GoOn } else { Command::Lost(AgentLoss::Closed) }
    }

    /// True if the leader gave no sign of life for `silence`.
    pub(super) fn is_silent(&self, silence: Duration) -> bool {
        self.link.heard.elapsed() > silence
    }

    /// Gives the leader up: nothing that is said waits for it any more.
    pub(super) fn give_up(&mut self) {
        self.is_lost = true;
    }

    /// Address of the leader's machine, in words.
    pub(super) fn machine(&self) -> String {
        self.link.address().map_or_else(|_| "the machine of rank 0".to_owned(), |it| it.to_string())
    }

    /// True if a rank is one of this agent.
    pub(super) fn is_own(&self, rank: usize) -> bool {
        self.part.agent.ranks.contains(&rank)
    }
}

/// Name of the network interface that has an address.
fn interface_of(address: IpAddr) -> Option<String> {
    if address.is_loopback() {
        return Some(LOOPBACK.to_owned());
    }
    let is_it = |it: &nix::ifaddrs::InterfaceAddress| {
        let own = it.address.as_ref()?;
        let v4 = own.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        let v6 = own.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip()));
        (v4.or(v6)? == address).then_some(())
    };
    getifaddrs().ok()?.find(|it| is_it(it).is_some()).map(|it| it.interface_name)
}
