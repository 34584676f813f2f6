//! Agents: zprobe processes on one or many machines, each of which starts some of the ranks of a run, or a command of
//! the user's whose processes join the run as its ranks.
//!
//! The agent of rank 0 leads (`team.rs`). It listens where the environment says that the processes of the job meet;
//! the others connect to it, and each proves to the other that it knows the token of the job
//! (`meeting.rs`). After that one connection for each agent carries everything (`link.rs`, `message.rs`): the
//! leader says when a run begins and ends, and an agent passes on every line of its ranks, and what
//! becomes of their processes (`leader.rs`). So the leader checks, watches and records all ranks alike, wherever they
//! are. Bytes on a connection grow with the number of ranks alone, and so does the memory of the leader, letters
//! between ranks excepted: the leader holds one copy for each agent until the copy is sent.
//!
//! An agent records its own ranks too, until the run is over: if the leader is lost, it reports what it
//! knows.

mod leader;
mod link;
mod meeting;
mod message;
mod tcp_store;
mod team;

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::unistd::gethostname;
use serde_json::Value;

pub(super) use leader::Command;
pub use leader::{Leader, Request};
use meeting::Announced;
pub use meeting::MeetingError;
pub use message::Agent;
pub(super) use team::Heard;
pub use team::Team;

use super::group::KILL_GRACE;
use super::place::{LOOPBACK, Place};

/// Time that another agent may take to end its processes and to tell the rest.
const FAREWELL: Duration = Duration::from_secs(20).saturating_add(KILL_GRACE);

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

    /// The part of the process with this number, or with none yet, each of which starts a command whose processes
    /// join as ranks.
    pub fn of_command(index: usize, agents: usize) -> Self {
        let part = Self::new(0, agents, 0, (0, 0));
        Self { agent: Agent { index, ..part.agent }, ..part }
    }

    /// True if this process leads.
    pub fn leads(&self) -> bool {
        self.agent.index == 0
    }

    fn announced(&self, settings: &Value) -> Announced {
        Announced { agent: self.agent.clone(), agents: self.agents, settings: settings.to_string() }
    }

    fn place(&self, master: (String, u16), store: Option<TcpListener>, interface: String) -> Place {
        let (first_local, local_world_size) = self.local;
        let ranks = self.agent.ranks.clone();
        Place { ranks, first_local, local_world_size, master, store, interface }
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
