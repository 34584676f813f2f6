//! The rendezvous of all agents of a job, before the first run of the job. Each agent proves that it knows the token
//! of the job, and announces the run that it is about to perform.

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
use super::message::{Agent, AgentMessage};
use super::tcp_store::TcpStore;
use crate::channel::ChannelState;
use crate::job::{Endpoint, JobRendezvous, UNNUMBERED};
use crate::trace_writer::now_ns;

/// The time that an agent may take for each message of the rendezvous.
const ANSWER: Duration = Duration::from_secs(10);

/// The time between two attempts to reach the leader.
const AGAIN: Duration = Duration::from_millis(100);

/// The largest number of differing settings that an error message names; further settings are only counted.
const NAMED: usize = 5;

/// An error that prevents the rendezvous of the agents of a job.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The leader cannot listen on the rendezvous port.
    #[error(
        "cannot listen on port {port}, the rendezvous of this job's processes: {cause}; name a free port of \
         the host of rank 0, the same for all processes, with --rdzv-endpoint HOST:PORT"
    )]
    Listen {
        /// The port on which the leader tried to listen.
        port: u16,
        /// The error that the operating system returned for the port.
        cause: io::Error,
    },
    /// The TCPStore of torchrun's agent cannot be used.
    #[error(
        "the TCPStore of torchrun's agent at {host}:{port} does not answer as torch 2.1 and later do: {cause}; \
         name a free port of the host of rank 0 with --rdzv-endpoint HOST:PORT"
    )]
    Store {
        /// The host of the store.
        host: String,
        /// The port of the store.
        port: u16,
        /// The error of the connection to the store.
        cause: io::Error,
    },
    /// Some agents did not connect in time.
    #[error(
        "{} of {agents} processes of this job did not connect within {patience} s: {}; look at their output, or \
         raise --rdzv-timeout",
        .missing.len(), numbers(.missing)
    )]
    Missing {
        /// The numbers of the agents that did not connect.
        missing: Vec<usize>,
        /// The number of agents of the job.
        agents: usize,
        /// The time for which the leader waited for the agents, in seconds.
        patience: u64,
    },
    /// The leader was not found.
    #[error(
        "no process with the token of this job answered at {place} within {patience} s ({last}); look at the \
         output of the process of rank 0, or raise --rdzv-timeout"
    )]
    NoLeader {
        /// The rendezvous address, as `HOST:PORT`.
        place: String,
        /// The time for which the agent looked for the leader, in seconds.
        patience: u64,
        /// The result of the last attempt, in words.
        last: String,
    },
    /// Two processes have the same number, or disagree about the number of processes or the version of zprobe.
    #[error("{0}")]
    Contradiction(String),
    /// The agents were about to perform different runs.
    #[error("the processes of this job were started with different settings: {0}")]
    Different(String),
    /// The leader has ended the job.
    #[error("{why} (said by the process of rank 0)")]
    Refused {
        /// The leader's reason to end the job.
        why: String,
    },
    /// The connection to the leader was lost before the run began.
    #[error("the process of rank 0 has ended before the run began: {0}; look at its output")]
    Lost(io::Error),
    /// The operating system refuses a call.
    #[error("cannot connect to the other processes of this job: {0}")]
    System(#[from] io::Error),
}

/// An agent and the run that it announces, which must be the same for all agents.
#[derive(Clone, Debug)]
pub(super) struct AnnouncedRun {
    pub(super) agent: Agent,
    pub(super) agents: usize,
    /// The settings of the run, as JSON.
    pub(super) settings: String,
}

/// An agent that has connected to the leader at the rendezvous.
#[derive(Debug)]
pub(super) struct ArrivedAgent {
    pub(super) announced: AnnouncedRun,
    pub(super) zprobe: String,
    pub(super) link: Link,
    /// The time by which the agent's clock is ahead of the leader's, in nanoseconds.
    pub(super) clock_ns: i64,
}

/// Waits, as the leader, for all other agents, and returns these agents in the order of their numbers.
pub(super) fn lead(
    own: &AnnouncedRun,
    rendezvous: &JobRendezvous,
    patience: Duration,
) -> Result<Vec<ArrivedAgent>, RendezvousError> {
    let deadline = Instant::now() + patience;
    let (listener, store, token) = listen(rendezvous, deadline)?;
    let key = Arc::new(key_of(&token));
    let mut arrived: BTreeMap<usize, ArrivedAgent> = BTreeMap::new();
    let gathered = gather(own, &listener, &key, deadline, patience, &mut arrived);
    if let Some((mut store, key)) = store {
        // The next command of the same job uses the same key for its rendezvous.
        let _ = store.delete(&key);
    }
    let mut arrived: Vec<ArrivedAgent> = arrived.into_values().collect();
    if let Err(error) = &gathered {
        refuse(arrived.iter_mut().map(|it| &mut it.link), &error.to_string());
    }
    gathered.map(|()| arrived)
}

/// Tells agents why the job is over.
pub(super) fn refuse<'a>(links: impl Iterator<Item = &'a mut Link>, why: &str) {
    for link in links {
        // An agent that is gone does not need the reason.
        let _ = link.say(&AgentMessage::Refused { why: why.to_owned() });
    }
}

fn gather(
    own: &AnnouncedRun,
    listener: &TcpListener,
    key: &Arc<[u8; 64]>,
    deadline: Instant,
    patience: Duration,
    arrived: &mut BTreeMap<usize, ArrivedAgent>,
) -> Result<(), RendezvousError> {
    listener.set_nonblocking(true)?;
    let (sender, receiver) = channel();
    while arrived.len() + 1 < own.agents {
        let now = Instant::now();
        if now > deadline {
            let is_missing =
                |index: &usize| *index != own.agent.index && !arrived.contains_key(index);
            let missing = (0..own.agents).filter(is_missing).collect();
            let patience = patience.as_secs();
            return Err(RendezvousError::Missing { missing, agents: own.agents, patience });
        }
        match listener.accept() {
            // Each agent is greeted in its own thread, so that a silent agent does not hold up the others.
            Ok((stream, _)) => greet(stream, Arc::clone(key), sender.clone()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match receiver.recv_timeout(Duration::from_millis(10)) {
                    Ok(other) => admit(own, other, arrived)?,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
                }
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error.into()),
        }
        // An agent whose connection was closed may connect again.
        arrived.retain(|_, it| it.link.receive() == ChannelState::Open);
        while let Ok(other) = receiver.try_recv() {
            admit(own, other, arrived)?;
        }
    }
    Ok(())
}

/// Adds an agent that has connected. Fails if the agent contradicts the other agents.
fn admit(
    own: &AnnouncedRun,
    mut other: ArrivedAgent,
    arrived: &mut BTreeMap<usize, ArrivedAgent>,
) -> Result<(), RendezvousError> {
    if other.announced.agent.index == UNNUMBERED {
        let is_free = |index: &usize| !arrived.contains_key(index);
        let Some(free) = (1..own.agents).find(is_free) else {
            let (agents, machine) = (own.agents, &other.announced.agent.machine);
            return Err(RendezvousError::Contradiction(format!(
                "more than {agents} processes have connected, the last from {machine}: raise the number of machines"
            )));
        };
        other.announced.agent.index = free;
    }
    let (index, machine) = (other.announced.agent.index, other.announced.agent.machine.clone());
    let contradiction = if other.zprobe != env!("CARGO_PKG_VERSION") {
        Some(RendezvousError::Contradiction(format!(
            "the process of rank 0 runs zprobe {}, and process {index} on {machine} runs zprobe {}: install one \
             version everywhere",
            env!("CARGO_PKG_VERSION"),
            other.zprobe,
        )))
    } else if other.announced.agents != own.agents {
        Some(RendezvousError::Contradiction(format!(
            "the process of rank 0 is one of {}, and process {index} on {machine} is one of {}: start all with the \
             same number of processes",
            own.agents, other.announced.agents,
        )))
    } else if index == own.agent.index || index >= own.agents || arrived.contains_key(&index) {
        Some(RendezvousError::Contradiction(format!(
            "two processes of this job have the number {index}; the second is on {machine}: give each node a \
             --node-rank of its own",
        )))
    } else {
        differences(&own.settings, &other.announced.settings).map(|differences| {
            RendezvousError::Different(format!(
                "{differences} (the first value is from rank 0, the second from process {index} on {machine})"
            ))
        })
    };
    arrived.insert(index, other);
    contradiction.map_or(Ok(()), Err)
}

/// Returns the settings that differ, with both values, in words; `None` if all settings are the same.
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
    for (index, name) in differing.iter().take(NAMED).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
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

/// Returns a list, in words, of at most eight process numbers.
fn numbers(numbers: &[usize]) -> String {
    const MOST: usize = 8;
    let shown: Vec<String> = numbers.iter().take(MOST).map(|it| format!("process {it}")).collect();
    let more = if numbers.len() > MOST { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// A listening socket, the store with its key, and the token of the job. The store is the TCPStore of torchrun's agent,
/// in which the other agents find the port and the token. The store and its key are `None` if the rendezvous does not
/// use such a store.
type Listener = (TcpListener, Option<(TcpStore, String)>, String);

fn listen(rendezvous: &JobRendezvous, deadline: Instant) -> Result<Listener, RendezvousError> {
    match &rendezvous.endpoint {
        Endpoint::At { host, port } => {
            let listener = listen_at(host, *port)
                .map_err(|cause| RendezvousError::Listen { port: *port, cause })?;
            Ok((listener, None, rendezvous.token.clone()))
        }
        Endpoint::Store { host, port, key } => {
            let broken = |cause| RendezvousError::Store { host: host.clone(), port: *port, cause };
            let mut store =
                TcpStore::over(connect(host, *port, deadline).map_err(broken)?).map_err(broken)?;
            // The store is on the leader's machine, and the other agents may know this machine by any of its addresses.
            // So the leader listens on all of them.
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

/// Listens on the address that the other agents know. If this machine does not have that address (because of a
/// service in front of the machine), the function listens on all addresses.
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

/// Connects to an address, with repeated attempts until `deadline`.
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

/// Receives the first messages of an agent, in a new thread. A process that does not know the token, or is not an
/// agent, is ignored.
fn greet(stream: TcpStream, key: Arc<[u8; 64]>, found: Sender<ArrivedAgent>) {
    thread::spawn(move || {
        if let Ok(Some(arrived)) = identify(stream, &key) {
            let _ = found.send(arrived);
        }
    });
}

fn identify(stream: TcpStream, key: &[u8; 64]) -> io::Result<Option<ArrivedAgent>> {
    let mut link = Link::new(stream)?;
    let next_message = |link: &mut Link| link.wait_for_message(Instant::now() + ANSWER);
    let Some(AgentMessage::Knock { nonce: theirs }) = next_message(&mut link)? else {
        return Ok(None);
    };
    let ours = nonce()?;
    let asked = now_ns();
    link.say(&AgentMessage::Challenge {
        nonce: ours.clone(),
        proof: hex(&proof(key, "leader", &theirs, &ours).finalize().into_bytes()),
    })?;
    let hello = next_message(&mut link)?;
    let answered = now_ns();
    let Some(AgentMessage::Hello { proof: given, agent, agents, zprobe, settings, t_ns }) = hello
    else {
        return Ok(None);
    };
    if proof(key, "agent", &theirs, &ours).verify_slice(&unhex(&given)).is_err() {
        return Ok(None);
    }
    let clock_ns = (i128::from(t_ns) - (i128::from(asked) + i128::from(answered)) / 2) as i64;
    Ok(Some(ArrivedAgent {
        announced: AnnouncedRun { agent, agents, settings },
        zprobe,
        link,
        clock_ns,
    }))
}

/// The leader's welcome to another agent.
pub(super) struct Welcome {
    /// The connection to the leader.
    pub(super) link: Link,
    pub(super) run_id: String,
    /// The number of the welcomed agent.
    pub(super) index: usize,
    /// The network interface that the leader's machine uses, if the welcomed agent runs on the same machine.
    pub(super) interface: Option<String>,
}

/// Connects to the leader, as another agent, and waits for the leader's welcome.
pub(super) fn attend(
    own: &AnnouncedRun,
    rendezvous: &JobRendezvous,
    patience: Duration,
) -> Result<Welcome, RendezvousError> {
    let deadline = Instant::now() + patience;
    let (host, port, token) = match &rendezvous.endpoint {
        Endpoint::At { host, port } => (host.clone(), *port, rendezvous.token.clone()),
        Endpoint::Store { host, port, key } => {
            let broken = |cause| RendezvousError::Store { host: host.clone(), port: *port, cause };
            let stream = connect(host, *port, deadline).map_err(broken)?;
            let mut store = TcpStore::over(stream).map_err(broken)?;
            let found = store.wait_get(key, deadline).map_err(broken)?;
            let found = String::from_utf8_lossy(&found).into_owned();
            let port_and_token = found
                .split_once(' ')
                .and_then(|(port, token)| Some((port.parse().ok()?, token.to_owned())));
            let (port, token) =
                port_and_token.ok_or_else(|| broken(io::ErrorKind::InvalidData.into()))?;
            (store.address().map_err(broken)?.to_string(), port, token)
        }
    };
    let key = key_of(&token);
    let mut link = loop {
        let last = match connect_once(&host, port).and_then(|stream| introduce(own, stream, &key)) {
            Ok(Some(link)) => break link,
            Ok(None) => "another program, or a process with another token, answered".to_owned(),
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            let place = format!("{host}:{port}");
            return Err(RendezvousError::NoLeader { place, patience: patience.as_secs(), last });
        }
        thread::sleep(AGAIN);
    };
    // The leader may wait for `patience` itself, and its welcome follows a moment later.
    match link.wait_for_message(deadline + patience + ANSWER) {
        Ok(Some(AgentMessage::Welcome { run: run_id, index, interface })) => {
            Ok(Welcome { link, run_id, index, interface })
        }
        Ok(Some(AgentMessage::Refused { why })) => Err(RendezvousError::Refused { why }),
        Ok(_) => Err(RendezvousError::Lost(io::ErrorKind::TimedOut.into())),
        Err(error) => Err(RendezvousError::Lost(error)),
    }
}

/// Sends the first messages of an agent. Returns `None` if the other end is not the leader of this job.
fn introduce(own: &AnnouncedRun, stream: TcpStream, key: &[u8; 64]) -> io::Result<Option<Link>> {
    let mut link = Link::new(stream)?;
    let ours = nonce()?;
    link.say(&AgentMessage::Knock { nonce: ours.clone() })?;
    let answer = link.wait_for_message(Instant::now() + ANSWER)?;
    let Some(AgentMessage::Challenge { nonce: theirs, proof: given }) = answer else {
        return Ok(None);
    };
    if proof(key, "leader", &ours, &theirs).verify_slice(&unhex(&given)).is_err() {
        return Ok(None);
    }
    link.say(&AgentMessage::Hello {
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

/// Returns the message authentication code by which a process proves that it knows the key. The code is valid only
/// for this role and these two nonces.
fn proof(key: &[u8; 64], role: &str, agent_nonce: &str, leader_nonce: &str) -> Blake2bMac512 {
    let mut mac = <Blake2bMac512 as KeyInit>::new(key.into());
    mac.update(format!("zprobe {role} {agent_nonce} {leader_nonce}").as_bytes());
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

/// Returns the bytes of a text of hexadecimal digits. For any other text, the result equals no valid code.
fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|it| it.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
        .collect()
}
