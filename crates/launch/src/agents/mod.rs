//! Agents: zprobe processes on one or several machines. Each agent starts some of the ranks of a run, or starts a
//! command of the user whose processes join the run as its ranks.
//!
//! The agent of rank 0 is the leader (`team.rs`). The leader listens at the rendezvous address of the job, which the
//! environment names. The other agents connect to the leader, and both ends prove that they know the token of the job
//! (`rendezvous.rs`). From then on a single connection for each agent carries all data (`link.rs`, `message.rs`): the
//! leader says when a run begins and ends, and an agent passes on every line of its ranks and the state of their
//! processes (`leader.rs`). So the leader checks, watches and records all ranks alike, on whichever machine they run.
//! The bytes on a connection and the memory of the leader grow only with the number of ranks. Messages between ranks
//! are the exception: the leader holds one copy for each agent until the copy is sent.
//!
//! An agent also records its own ranks until the run is over. If the leader is lost, the agent reports from this
//! record.

mod leader;
mod link;
mod message;
mod rendezvous;
mod tcp_store;
mod team;

use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::unistd::gethostname;
use serde_json::Value;

pub(super) use leader::LeaderCommand;
pub use leader::{Leader, LeaderRequest};
pub use message::Agent;
use rendezvous::AnnouncedRun;
pub use rendezvous::RendezvousError;
pub(super) use team::AgentNotice;
pub use team::Team;

use super::group::KILL_GRACE;
use super::rank_share::{LOOPBACK, RankShare};

/// The time that another agent may take to end its processes and to send its remaining messages.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20).saturating_add(KILL_GRACE);

/// The part of a job that this process performs.
#[derive(Clone, Debug)]
pub struct JobPart {
    /// The number of this process, its ranks and its machine.
    pub agent: Agent,
    /// The number of agents of the job.
    pub agents: usize,
    /// The local rank of the first rank of this process, and the number of ranks on its machine.
    pub local: (usize, usize),
}

impl JobPart {
    /// Returns the part of the process with the number `index`, in a job whose processes each start `ranks` ranks.
    pub fn new(index: usize, agents: usize, ranks: usize, local: (usize, usize)) -> Self {
        let machine =
            gethostname().map_or_else(|_| String::new(), |it| it.to_string_lossy().into());
        let agent = Agent { index, ranks: index * ranks..(index + 1) * ranks, machine };
        Self { agent, agents, local }
    }

    /// Returns the part of the process with the number `index` in a job in which each process starts a command, and the
    /// processes of the commands join as ranks. `index` is [`UNNUMBERED`](crate::job::UNNUMBERED) if the process has no
    /// number yet.
    pub fn of_command(index: usize, agents: usize) -> Self {
        let part = Self::new(0, agents, 0, (0, 0));
        Self { agent: Agent { index, ..part.agent }, ..part }
    }

    /// True if this process is the leader.
    pub fn leads(&self) -> bool {
        self.agent.index == 0
    }

    fn announced(&self, settings: &Value) -> AnnouncedRun {
        AnnouncedRun {
            agent: self.agent.clone(),
            agents: self.agents,
            settings: settings.to_string(),
        }
    }

    fn place(
        &self,
        master: (String, u16),
        store: Option<TcpListener>,
        interface: String,
    ) -> RankShare {
        let (first_local, local_world_size) = self.local;
        let ranks = self.agent.ranks.clone();
        RankShare { ranks, first_local, local_world_size, master, store, interface }
    }
}

/// Returns the name of the network interface that has the address `address`.
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
