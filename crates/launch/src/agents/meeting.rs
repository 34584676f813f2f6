//! The meeting of all agents of a job, before its first run: each proves that it knows the token of
//! the job, and says what it is about to run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _,
};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use blake2::digest::{KeyInit, Mac as _};
use blake2::{Blake2b512, Blake2bMac512, Digest as _};
use serde_json::Value;

use super::link::Link;
use super::message::{Agent, Message};
use super::tcp_store::TcpStore;
use crate::channel::State;
use crate::job::{Endpoint, Meeting, UNNUMBERED};
use crate::recorder::now_ns;

/// Time that an agent may take for each of its first words.
const ANSWER: Duration = Duration::from_secs(10);

/// Time between two attempts to reach the leader.
const AGAIN: Duration = Duration::from_millis(100);

/// Settings that differ between two agents and are named in full; others are counted.
const NAMED: usize = 5;

/// Error that keeps the agents of a job from meeting.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// The leader cannot listen.
    #[error(
        "cannot listen at port {port}, where the processes of this job meet: {cause}; name a free port of \
         the host of rank 0, the same everywhere, with --rdzv-endpoint HOST:PORT"
    )]
    Listen {
        /// The port.
        port: u16,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The store of the launcher cannot be used.
    #[error(
        "the TCPStore of torchrun's agent at {host}:{port} does not answer as torch 2.1 and later do: {cause}; \
         name a free port of the host of rank 0 with --rdzv-endpoint HOST:PORT"
    )]
    Store {
        /// Host of the store.
        host: String,
        /// Port of the store.
        port: u16,
        /// Error of the connection.
        cause: io::Error,
    },
    /// Not all agents came in time.
    #[error(
        "{} of {agents} processes of this job did not come within {patience} s: {}; look at their output, or \
         raise --rdzv-timeout",
        .missing.len(), numbers(.missing)
    )]
    Missing {
        /// Numbers of those that did not come.
        missing: Vec<usize>,
        /// Number of all agents.
        agents: usize,
        /// Time for which they were awaited, in seconds.
        patience: u64,
    },
    /// The leader was not found.
    #[error(
        "nobody who knows the token of this job answers at {place} after {patience} s ({last}); look at the \
         output of the process of rank 0, or raise --rdzv-timeout"
    )]
    NoLeader {
        /// The address.
        place: String,
        /// Time for which the leader was looked for, in seconds.
        patience: u64,
        /// Result of the last attempt.
        last: String,
    },
    /// Two processes say that they are the same, or that there are as many as others do not say.
    #[error("{0}")]
    Contradiction(String),
    /// The agents were about to run different things.
    #[error("the processes of this job were started with different settings: {0}")]
    Different(String),
    /// The leader has ended everything.
    #[error("{why} (said by the process of rank 0)")]
    Refused {
        /// Its reason.
        why: String,
    },
    /// The leader was lost.
    #[error("the process of rank 0 has ended before the run began: {0}; look at its output")]
    Lost(io::Error),
    /// The operating system refuses something.
    #[error("cannot meet the other processes of this job: {0}")]
    System(#[from] io::Error),
}

/// An agent and its intentions, which must be the same for all agents.
#[derive(Clone, Debug)]
pub(super) struct Announced {
    pub(super) agent: Agent,
    pub(super) agents: usize,
    /// Settings of the run as JSON.
    pub(super) settings: String,
}

/// An agent that has come to the meeting.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) announced: Announced,
    pub(super) zprobe: String,
    pub(super) link: Link,
    /// Time by which the agent's clock is ahead, in nanoseconds.
    pub(super) clock_ns: i64,
}

/// Waits, as the leader, for all other agents, and returns them in their order.
pub(super) fn lead(
    own: &Announced,
    meeting: &Meeting,
    patience: Duration,
) -> Result<Vec<Came>, MeetingError> {
    let deadline = Instant::now() + patience;
    let (listener, store, token) = listen(meeting, deadline)?;
    let key = Arc::new(key_of(&token));
    let mut came: BTreeMap<usize, Came> = BTreeMap::new();
    let met = gather(own, &listener, &key, deadline, patience, &mut came);
    if let Some((mut store, key)) = store {
        // The next command of the same job meets under the same key.
        let _ = store.delete(&key);
    }
    let mut came: Vec<Came> = came.into_values().collect();
    if let Err(error) = &met {
        refuse(came.iter_mut().map(|it| &mut it.link), &error.to_string());
    }
    met.map(|()| came)
}

/// Tells agents why everything is over.
pub(super) fn refuse<'a>(links: impl Iterator<Item = &'a mut Link>, why: &str) {
    for link in links {
        // One that is gone needs no reason.
        let _ = link.say(&Message::Refused { why: why.to_owned() });
    }
}

fn gather(
    own: &Announced,
    listener: &TcpListener,
    key: &Arc<[u8; 64]>,
    deadline: Instant,
    patience: Duration,
    came: &mut BTreeMap<usize, Came>,
) -> Result<(), MeetingError> {
    listener.set_nonblocking(true)?;
    let (sender, receiver) = channel();
    while came.len() + 1 < own.agents {
        let now = Instant::now();
        if now > deadline {
            let is_missing = |index: &usize| *index != own.agent.index && !came.contains_key(index);
            let missing = (0..own.agents).filter(is_missing).collect();
            let patience = patience.as_secs();
            return Err(MeetingError::Missing { missing, agents: own.agents, patience });
        }
        match listener.accept() {
            // Each in a thread of its own: one that says nothing holds up no other.
            Ok((stream, _)) => greet(stream, Arc::clone(key), sender.clone()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match receiver.recv_timeout(Duration::from_millis(10)) {
                    Ok(other) => enter(own, other, came)?,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error.into()),
        }
        // An agent that is gone may come again.
        came.retain(|_, it| it.link.receive() == State::Open);
        while let Ok(other) = receiver.try_recv() {
            enter(own, other, came)?;
        }
    }
    Ok(())
}

/// Enters an agent that has come, unless it contradicts the others.
fn enter(
    own: &Announced,
    mut other: Came,
    came: &mut BTreeMap<usize, Came>,
) -> Result<(), MeetingError> {
    if other.announced.agent.index == UNNUMBERED {
        let is_free = |index: &usize| !came.contains_key(index);
        let Some(free) = (1..own.agents).find(is_free) else {
            let (agents, machine) = (own.agents, &other.announced.agent.machine);
            return Err(MeetingError::Contradiction(format!(
                "more than {agents} processes have come, the last on {machine}: raise the number of machines"
            )));
        };
        other.announced.agent.index = free;
    }
    let (index, machine) = (other.announced.agent.index, other.announced.agent.machine.clone());
    let contradiction = if other.zprobe != env!("CARGO_PKG_VERSION") {
        Some(MeetingError::Contradiction(format!(
            "the process of rank 0 is zprobe {}, and number {index} on {machine} is zprobe {}: install one \
             version everywhere",
            env!("CARGO_PKG_VERSION"),
            other.zprobe,
        )))
    } else if other.announced.agents != own.agents {
        Some(MeetingError::Contradiction(format!(
            "the process of rank 0 is one of {}, and number {index} on {machine} one of {}: start all with the \
             same number of processes",
            own.agents, other.announced.agents,
        )))
    } else if index == own.agent.index || index >= own.agents || came.contains_key(&index) {
        Some(MeetingError::Contradiction(format!(
            "two processes of this job are number {index}; the second is on {machine}: give each node a \
             --node-rank of its own",
        )))
    } else {
        differences(&own.settings, &other.announced.settings).map(|differences| {
            MeetingError::Different(format!(
                "{differences} (the first is that of rank 0, the second that of number {index} on {machine})"
            ))
        })
    };
    came.insert(index, other);
    contradiction.map_or(Ok(()), Err)
}

/// The settings that differ, with both values; none if all are the same.
fn differences(ours: &str, theirs: &str) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (mut left, mut right) = (BTreeMap::new(), BTreeMap::new());
    for (text, leaves) in [(ours, &mut left), (theirs, &mut right)] {
        collect(serde_json::from_str(text).unwrap_or(Value::Null), String::new(), leaves);
    }
    let names: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differing: Vec<_> =
        names.into_iter().filter(|name| left.get(*name) != right.get(*name)).collect();
    let mut words = String::new();
    for (place, name) in differing.iter().take(NAMED).enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        let value = |leaves: &BTreeMap<String, Value>| {
            let value = leaves.get(*name).filter(|value| !value.is_null());
            value.map_or_else(|| "none".to_owned(), Value::to_string)
        };
        let _ = write!(words, "{comma}{name} is {} and {}", value(&left), value(&right));
    }
    match differing.len().saturating_sub(NAMED) {
        0 => {}
        more => {
            let _ = write!(words, ", and {more} more");
        }
    }
    Some(words)
}

fn collect(value: Value, name: String, leaves: &mut BTreeMap<String, Value>) {
    let Value::Object(members) = value else {
        leaves.insert(name, value);
        return;
    };
    for (member, value) in members {
        let dot = if name.is_empty() { "" } else { "." };
        collect(value, format!("{name}{dot}{member}"), leaves);
    }
}

/// Numbers as a list that a reader takes in.
fn numbers(numbers: &[usize]) -> String {
    const MOST: usize = 8;
    let shown: Vec<String> = numbers.iter().take(MOST).map(|it| format!("number {it}")).collect();
    let more = if numbers.len() > MOST { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A listening socket, and the token of the job. The store in which the others find both, with the key, is
/// that of the launcher, if it has one.
type Listening = (TcpListener, Option<(TcpStore, String)>, String);

fn listen(meeting: &Meeting, deadline: Instant) -> Result<Listening, MeetingError> {
    match &meeting.endpoint {
        Endpoint::At { host, port } => {
            let listener = listen_at(host, *port)
                .map_err(|cause| MeetingError::Listen { port: *port, cause })?;
            Ok((listener, None, meeting.token.clone()))
        }
        Endpoint::Store { host, port, key } => {
            let broken = |cause| MeetingError::Store { host: host.clone(), port: *port, cause };
            let mut store =
                TcpStore::over(connect(host, *port, deadline).map_err(broken)?).map_err(broken)?;
            // Whatever address the others know this machine by: the store is on it too.
            let all: IpAddr = match store.address().map_err(broken)? {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let listener = TcpListener::bind((all, 0))?;
            let mut secret = [0; 32];
            getrandom::fill(&mut secret).map_err(io::Error::other)?;
            let token = hex(&secret);
            let port = listener.local_addr()?.port();
            store.set(key, format!("{port} {token}").as_bytes()).map_err(broken)?;
            Ok((listener, Some((store, key.clone())), token))
        }
    }
}

/// Listens at the address that the others know, or, where that is none of this machine's own (a service in
/// front of it), at all of them.
fn listen_at(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut error = None;
    let named = (host, port).to_socket_addrs().into_iter().flatten();
    let all = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    for address in named.chain(all.map(|address| SocketAddr::new(address, port))) {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(it) if it.kind() == io::ErrorKind::AddrInUse => return Err(it),
            Err(it) => error = Some(it),
        }
    }
    Err(error.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

/// Connects, as often as needed until `deadline`.
fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        match connect_once(host, port) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => thread::sleep(AGAIN),
        }
    }
}

fn connect_once(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, ANSWER) {
            Ok(stream) => return Ok(stream),
            Err(it) => error = it,
        }
    }
    Err(error)
}

/// Hears the first words of an agent, in a thread of its own. One that does not know the token, or is no
/// agent, is not answered.
fn greet(stream: TcpStream, key: Arc<[u8; 64]>, found: Sender<Came>) {
    thread::spawn(move || {
        if let Ok(Some(came)) = greeted(stream, &key) {
            let _ = found.send(came);
        }
    });
}

fn greeted(stream: TcpStream, key: &[u8; 64]) -> io::Result<Option<Came>> {
    let mut link = Link::new(stream)?;
    let hear = |link: &mut Link| link.wait_for_message(Instant::now() + ANSWER);
    let Some(Message::Knock { nonce: theirs }) = hear(&mut link)? else { return Ok(None) };
    let ours = nonce()?;
    let asked = now_ns();
    link.say(&Message::Challenge {
        nonce: ours.clone(),
        proof: hex(&proof(key, "leader", &theirs, &ours).finalize().into_bytes()),
    })?;
    let hello = hear(&mut link)?;
    let heard = now_ns();
    let Some(Message::Hello { proof: given, agent, agents, zprobe, settings, t_ns }) = hello else {
        return Ok(None);
    };
    if proof(key, "agent", &theirs, &ours).verify_slice(&unhex(&given)).is_err() {
        return Ok(None);
    }
    let clock_ns = (i128::from(t_ns) - (i128::from(asked) + i128::from(heard)) / 2) as i64;
    Ok(Some(Came { announced: Announced { agent, agents, settings }, zprobe, link, clock_ns }))
}

/// The leader's welcome to another agent.
pub(super) struct Welcomed {
    /// Connection to the leader.
    pub(super) link: Link,
    pub(super) run_id: String,
    /// Number of the agent that is welcomed.
    pub(super) index: usize,
    /// Network interface that the leader's machine uses, if this one has the same.
    pub(super) interface: Option<String>,
}

/// Finds the leader, as another agent, and is welcomed by it.
pub(super) fn attend(
    own: &Announced,
    meeting: &Meeting,
    patience: Duration,
) -> Result<Welcomed, MeetingError> {
    let deadline = Instant::now() + patience;
    let (host, port, token) = match &meeting.endpoint {
        Endpoint::At { host, port } => (host.clone(), *port, meeting.token.clone()),
        Endpoint::Store { host, port, key } => {
            let broken = |cause| MeetingError::Store { host: host.clone(), port: *port, cause };
            let stream = connect(host, *port, deadline).map_err(broken)?;
            let mut store = TcpStore::over(stream).map_err(broken)?;
            let found = store.wait_get(key, deadline).map_err(broken)?;
            let found = String::from_utf8_lossy(&found).into_owned();
            let place = found
                .split_once(' ')
                .and_then(|(port, token)| Some((port.parse().ok()?, token.to_owned())));
            let (port, token) = place.ok_or_else(|| broken(io::ErrorKind::InvalidData.into()))?;
            (store.address().map_err(broken)?.to_string(), port, token)
        }
    };
    let key = key_of(&token);
    let mut link = loop {
        let last = match connect_once(&host, port).and_then(|stream| introduce(own, stream, &key)) {
            Ok(Some(link)) => break link,
            Ok(None) => "another program, or a process with another token, is there".to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            let place = format!("{host}:{port}");
            return Err(MeetingError::NoLeader { place, patience: patience.as_secs(), last });
        }
        thread::sleep(AGAIN);
    };
    // The leader itself waits so long for the others; its own words come a moment later.
    match link.wait_for_message(deadline + patience + ANSWER) {
        Ok(Some(Message::Welcome { run: run_id, index, interface })) => {
            Ok(Welcomed { link, run_id, index, interface })
        }
        Ok(Some(Message::Refused { why })) => Err(MeetingError::Refused { why }),
        Ok(_) => Err(MeetingError::Lost(io::ErrorKind::TimedOut.into())),
        Err(error) => Err(MeetingError::Lost(error)),
    }
}

/// Says the first words of an agent. The result is none if the other end is not the leader of this job.
fn introduce(own: &Announced, stream: TcpStream, key: &[u8; 64]) -> io::Result<Option<Link>> {
    let mut link = Link::new(stream)?;
    let ours = nonce()?;
    link.say(&Message::Knock { nonce: ours.clone() })?;
    let answer = link.wait_for_message(Instant::now() + ANSWER)?;
    let Some(Message::Challenge { nonce: theirs, proof: given }) = answer else { return Ok(None) };
    if proof(key, "leader", &ours, &theirs).verify_slice(&unhex(&given)).is_err() {
        return Ok(None);
    }
    link.say(&Message::Hello {
        proof: hex(&proof(key, "agent", &ours, &theirs).finalize().into_bytes()),
        agent: own.agent.clone(),
        agents: own.agents,
        zprobe: env!("CARGO_PKG_VERSION").to_owned(),
        settings: own.settings.clone(),
        t_ns: now_ns(),
    })?;
    Ok(Some(link))
}

fn key_of(token: &str) -> [u8; 64] {
    Blake2b512::digest(token.as_bytes()).into()
}

/// The code that proves that its sender knows the key, for this role and this conversation alone.
fn proof(key: &[u8; 64], role: &str, agents: &str, leaders: &str) -> Blake2bMac512 {
    let mut mac = <Blake2bMac512 as KeyInit>::new(key.into());
    mac.update(format!("zprobe {role} {agents} {leaders}").as_bytes());
    mac
}

fn nonce() -> io::Result<String> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(hex(&nonce))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of a text of hexadecimal digits; none that anything equals if it is no such text.
fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|it| it.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
        .collect()
}
