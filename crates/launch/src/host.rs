//! Starts the hosts of a run. A host is a process that is one rank, or a process that forks all ranks.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use super::channel::Channel;
use super::group::ProcessGroup;
use super::host_channel::HostChannel;
use super::line_checker::{ChannelOwner, LineChecker};
use super::pool::ForkRequest;
use super::rank_share::RankShare;
use super::spawn::{EnvironmentOverrides, Streams, for_forking, spawn, unless_set};
use super::{HostSource, Hosting, Launch, LaunchError, RankProgram, surroundings};
use zprobe_model::spec::{Plan, Workload};
use zprobe_model::trace::contract::{self, LogOf};

/// The environment variables of a run that engines read, in addition to zprobe's own: the first rank of a host, the
/// number of ranks, and the address of the TCPStore.
pub(super) const OF_A_RUN: [&str; 6] =
    ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK"];

/// The variables by which torchrun tells torch that torchrun's agent holds the TCPStore. The variables are unset for
/// ranks, because the ranks of a run have their own store.
pub(super) const OF_TORCHRUN: [&str; 2] = ["TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"];

/// The hosts of some ranks, and the channel of each rank, in rank order.
pub(super) struct StartedHosts {
    pub(super) groups: Vec<ProcessGroup>,
    pub(super) channels: Vec<Channel>,
    /// The channel from the only host; `None` if each rank is its own host.
    pub(super) host: Option<HostChannel>,
}

/// Starts the ranks that `share` describes.
pub(super) fn start(
    launch: &Launch<'_>,
    run_dir: &Path,
    share: &RankShare,
) -> Result<StartedHosts, LaunchError> {
    surroundings::check()?;
    let channel = || Channel::new().map_err(LaunchError::system("a pipe to a rank"));
    let hosts = HostInputs::new(launch, run_dir, share)?;
    let ranks = share.ranks.clone();
    let (channels, events): (Vec<Channel>, Vec<OwnedFd>) =
        ranks.clone().map(|_| channel()).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    if launch.source.hosting() == Hosting::OnePerRank
        && let HostSource::Cold(program) = launch.source
    {
        let groups = ranks.zip(&events).map(|(rank, event)| hosts.start_rank(program, rank, event));
        return Ok(StartedHosts {
            groups: groups.collect::<Result<_, _>>()?,
            channels,
            host: None,
        });
    }
    let (host_channel, far_end) = channel()?;
    let group = match launch.source {
        HostSource::Cold(program) => hosts.start_forking(program, &events, &far_end)?,
        HostSource::Warm(pool) => pool.fork_host(hosts.handover(&events, &far_end)?)?,
    };
    let checker = LineChecker::new(launch.run_id, launch.spec, ChannelOwner::Host(ranks));
    let host = Some(HostChannel { channel: host_channel, checker });
    Ok(StartedHosts { groups: vec![group], channels, host })
}

/// The inputs that all hosts of a run share.
struct HostInputs<'a> {
    /// The run directory as an absolute path, because a rank may change its working directory.
    run_dir: &'a Path,
    /// The part of the environment that is the same for every host.
    variables: EnvironmentOverrides,
    share: &'a RankShare,
}

impl<'a> HostInputs<'a> {
    fn new(
        launch: &Launch<'_>,
        run_dir: &'a Path,
        share: &'a RankShare,
    ) -> Result<Self, LaunchError> {
        let spec = serde_json::to_string(launch.spec)
            .map_err(LaunchError::system("the spec for the ranks"))?;
        let plan = Plan::new(launch.spec);
        let params = serde_json::to_string(plan.params())
            .map_err(LaunchError::system("the parameters for the ranks"))?;
        let workload = serde_json::to_string(&Workload::new(launch.spec, &plan))
            .map_err(LaunchError::system("the workload for the ranks"))?;
        let mut variables = vec![
            (contract::RUN, Some(launch.run_id.into())),
            (contract::SPEC, Some(spec.into())),
            (contract::PARAMS, Some(params.into())),
            (contract::WORKLOAD, Some(workload.into())),
            (contract::RUN_DIR, Some(run_dir.into())),
        ];
        let (host, port) = &share.master;
        let values = [
            host.clone(),
            port.to_string(),
            launch.spec.world_size.to_string(),
            share.local_world_size.to_string(),
            share.ranks.start.to_string(),
            share.first_local.to_string(),
        ];
        variables.extend(OF_A_RUN.into_iter().zip(values.map(|value| Some(value.into()))));
        variables.extend(OF_TORCHRUN.map(|name| (name, None)));
        variables.extend(unless_set("GLOO_SOCKET_IFNAME", &share.interface));
        Ok(Self { run_dir, variables, share })
    }

    /// Starts the process of rank `rank` and passes it the sending end of the rank's event channel.
    fn start_rank(
        &self,
        program: &RankProgram,
        rank: usize,
        event: &OwnedFd,
    ) -> Result<ProcessGroup, LaunchError> {
        let store = self.share.store.as_ref().filter(|_| rank == 0).map(AsFd::as_fd);
        let local_rank = self.share.first_local + rank - self.share.ranks.start;
        let mut variables = self.variables.clone();
        variables.extend([
            ("RANK", Some(rank.to_string().into())),
            ("LOCAL_RANK", Some(local_rank.to_string().into())),
            (contract::EVENT_FDS, Some(number(event))),
            (contract::STORE_FD, store.map(number)),
            (contract::HOST_FD, None),
        ]);
        let inherited: Vec<_> = [event.as_fd()].into_iter().chain(store).collect();
        spawn(program, Streams::create(LogOf::Rank(rank), self.run_dir)?, variables, &inherited)
    }

    /// Starts the process that forks all ranks. The process gets the sending ends of the ranks' event channels and of
    /// its host channel.
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
            (contract::STORE_FD, self.share.store.as_ref().map(number)),
            (contract::HOST_FD, Some(number(host_channel))),
        ]);
        let streams = Streams::create(LogOf::Host, self.run_dir)?;
        spawn(program, streams, variables, &self.inherited(events, host_channel))
    }

    /// Returns the inputs from which a pool forks the host of this run.
    fn handover<'b>(
        &'b self,
        events: &'b [OwnedFd],
        host_channel: &'b OwnedFd,
    ) -> Result<ForkRequest<'b>, LaunchError> {
        Ok(ForkRequest {
            variables: &self.variables,
            streams: Streams::create(LogOf::Host, self.run_dir)?,
            descriptors: self.inherited(events, host_channel),
            stderr: LogOf::Host.stderr(self.run_dir),
        })
    }

    /// Returns the descriptors that a forking host inherits, in the order in which a pool expects them. The socket of
    /// the TCPStore is one of them, because a pool's host forks all ranks of a run.
    fn inherited<'b>(
        &'b self,
        events: &'b [OwnedFd],
        host_channel: &'b OwnedFd,
    ) -> Vec<BorrowedFd<'b>> {
        let store = self.share.store.as_ref().map(AsFd::as_fd);
        let leading = store.into_iter().chain([host_channel.as_fd()]);
        leading.chain(events.iter().map(AsFd::as_fd)).collect()
    }
}

/// Returns the number of a descriptor as the value of an environment variable.
fn number(fd: impl AsFd) -> OsString {
    fd.as_fd().as_raw_fd().to_string().into()
}
