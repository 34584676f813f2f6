//! Starts the hosts of a run. A host is a process that is one rank, or that forks all ranks.

use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use super::channel::Channel;
use super::conversation::Conversation;
use super::group::ProcessGroup;
use super::pool::Handover;
use super::sender::{Role, Sender};
use super::spawn::{Streams, Variables, for_forking, spawn, unless_set};
use super::{Hosting, Launch, LaunchError, RankProgram, Source, surroundings};
use crate::spec::{Plan, Workload};
use crate::trace::contract::{self, LogOf};

/// Environment variables of a run that engines read, in addition to those of zprobe: the number of
/// ranks, and the address at which they meet.
pub(super) const OF_A_RUN: [&str; 4] =
    ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];

/// Linux's name of the loopback interface, which no other machine reaches.
const LOOPBACK: &str = "lo";

/// All hosts of a run, and a conversation with each rank, in rank order. A host that forks the
/// ranks is the only one, and the conversation with it comes last.
pub(super) struct Started {
    pub(super) groups: Vec<ProcessGroup>,
    pub(super) conversations: Vec<Conversation>,
}

/// Starts the ranks of `launch`.
pub(super) fn start(launch: &Launch<'_>, run_dir: &Path) -> Result<Started, LaunchError> {
    surroundings::check()?;
    let mut conversations = Vec::new();
    let mut converse = |role| {
        let (channel, far_end) = Channel::new().map_err(LaunchError::system("a pipe to a rank"))?;
        let sender = Sender::new(launch.run_id, launch.spec, role);
        conversations.push(Conversation { channel, sender });
        Ok(far_end)
    };
    let hosts = Hosts::new(launch, run_dir)?;
    let ranks = 0..launch.spec.world_size;
    let events: Vec<OwnedFd> =
        ranks.clone().map(|rank| converse(Role::Rank(rank))).collect::<Result<_, LaunchError>>()?;
    let groups = match launch.source {
        Source::Cold(program) if program.hosting == Hosting::OnePerRank => events
            .iter()
            .enumerate()
            .map(|(rank, event)| hosts.start_rank(program, rank, event))
            .collect::<Result<_, _>>()?,
        Source::Cold(program) => {
            let host_channel = converse(Role::Host(ranks))?;
            vec![hosts.start_forking(program, &events, &host_channel)?]
        }
        Source::Warm(pool) => {
            let host_channel = converse(Role::Host(ranks))?;
            vec![pool.fork_host(hosts.handover(&events, &host_channel)?)?]
        }
    };
    Ok(Started { groups, conversations })
}

/// Inputs that all hosts of a run share.
struct Hosts<'a> {
    /// The run directory as an absolute path, because a rank may change its working directory.
    run_dir: &'a Path,
    /// The part of the environment that is the same for every host.
    variables: Variables,
    /// Socket at which the ranks meet. It listens already, so no other process can take its port.
    store: TcpListener,
}

impl<'a> Hosts<'a> {
    fn new(launch: &Launch<'_>, run_dir: &'a Path) -> Result<Self, LaunchError> {
        let spec = serde_json::to_string(launch.spec)
            .map_err(LaunchError::system("the spec for the ranks"))?;
        let plan = Plan::new(launch.spec);
        let params = serde_json::to_string(plan.params())
            .map_err(LaunchError::system("the parameters for the ranks"))?;
        let workload = serde_json::to_string(&Workload::new(launch.spec, &plan))
            .map_err(LaunchError::system("the workload for the ranks"))?;
        let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(LaunchError::system("a socket for the ranks to meet at"))?;
        let address =
            store.local_addr().map_err(LaunchError::system("the ranks' meeting point"))?;
        let world_size = launch.spec.world_size.to_string();
        let mut variables = vec![
            (contract::RUN, Some(launch.run_id.into())),
            (contract::SPEC, Some(spec.into())),
            (contract::PARAMS, Some(params.into())),
            (contract::WORKLOAD, Some(workload.into())),
            (contract::RUN_DIR, Some(run_dir.into())),
        ];
        let values =
            [address.ip().to_string(), address.port().to_string(), world_size.clone(), world_size];
        variables.extend(OF_A_RUN.into_iter().zip(values.map(|value| Some(value.into()))));
        // By default Gloo listens on the address of the host name, which other machines may reach.
        variables.extend(unless_set("GLOO_SOCKET_IFNAME", LOOPBACK));
        Ok(Self { run_dir, variables, store })
    }

    /// Starts the process of rank `rank`, which gets the sending end of its event channel.
    fn start_rank(
        &self,
        program: &RankProgram,
        rank: usize,
        event: &OwnedFd,
    ) -> Result<ProcessGroup, LaunchError> {
        let store = (rank == 0).then(|| self.store.as_fd());
        let mut variables = self.variables.clone();
        variables.extend([
            ("RANK", Some(rank.to_string().into())),
            ("LOCAL_RANK", Some(rank.to_string().into())),
            (contract::EVENT_FDS, Some(number(event))),
            (contract::STORE_FD, store.map(number)),
            (contract::HOST_FD, None),
        ]);
        let inherited: Vec<_> = [event.as_fd()].into_iter().chain(store).collect();
        spawn(program, Streams::create(LogOf::Rank(rank), self.run_dir)?, variables, &inherited)
    }

    /// Starts the process that forks all ranks. It gets the sending ends of their event channels,
    /// and of its host channel.
    fn start_forking(
        &self,
        program: &RankProgram,
        events: &[OwnedFd],
        host_channel: &OwnedFd,
    ) -> Result<ProcessGroup, LaunchError> {
        let numbers: Vec<_> = events.iter().map(number).collect();
        let mut variables = self.variables.clone();
        variables.extend(for_forking());
        variables.extend([
            (contract::EVENT_FDS, Some(numbers.join(",".as_ref()))),
            (contract::STORE_FD, Some(number(&self.store))),
            (contract::HOST_FD, Some(number(host_channel))),
        ]);
        let streams = Streams::create(LogOf::Host, self.run_dir)?;
        spawn(program, streams, variables, &self.inherited(events, host_channel))
    }

    /// Inputs with which a pool forks the process that forks all ranks.
    fn handover<'b>(
        &'b self,
        events: &'b [OwnedFd],
        host_channel: &'b OwnedFd,
    ) -> Result<Handover<'b>, LaunchError> {
        Ok(Handover {
            variables: &self.variables,
            streams: Streams::create(LogOf::Host, self.run_dir)?,
            descriptors: self.inherited(events, host_channel),
            stderr: LogOf::Host.stderr(self.run_dir),
        })
    }

    /// Descriptors of a host that forks its ranks, in the order in which a pool is given them.
    fn inherited<'b>(
        &'b self,
        events: &'b [OwnedFd],
        host_channel: &'b OwnedFd,
    ) -> Vec<BorrowedFd<'b>> {
        let leading = [self.store.as_fd(), host_channel.as_fd()];
        leading.into_iter().chain(events.iter().map(AsFd::as_fd)).collect()
    }
}

/// A descriptor as the value of a variable.
fn number(fd: impl AsFd) -> OsString {
    fd.as_fd().as_raw_fd().to_string().into()
}
