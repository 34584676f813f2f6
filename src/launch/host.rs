//! Starts the process that a rank, or every rank, lives in.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::slice;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

use super::channel::Channel;
use super::conversation::Conversation;
use super::group::ProcessGroup;
use super::sender::{Role, Sender};
use super::{Hosting, Launch, LaunchError};
use crate::spec::Plan;
use crate::trace::contract::{self, LogOf};

/// Every host of a run, and a conversation with each rank, in rank order. A host that forks its
/// ranks is the only one, and the conversation with it comes last.
pub(super) struct Started {
    pub(super) groups: Vec<ProcessGroup>,
    pub(super) conversations: Vec<Conversation>,
}

/// Starts the ranks of `launch`.
pub(super) fn start(launch: &Launch<'_>, run_dir: &Path) -> Result<Started, LaunchError> {
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
    let groups = match launch.program.hosting {
        Hosting::OnePerRank => events
            .iter()
            .enumerate()
            .map(|(rank, event)| hosts.spawn(rank, slice::from_ref(event), None))
            .collect::<Result<_, _>>()?,
        Hosting::Forked => {
            let host_channel = converse(Role::Host(ranks))?;
            vec![hosts.spawn(0, &events, Some(&host_channel))?]
        }
    };
    Ok(Started { groups, conversations })
}

/// What the hosts of a run have in common.
struct Hosts<'a> {
    launch: &'a Launch<'a>,
    /// Absolute, because a rank may change its directory.
    run_dir: &'a Path,
    /// The spec as JSON.
    spec: String,
    /// The model's parameters as JSON.
    params: String,
    /// Where the ranks meet. The socket listens already, so nobody can take its port.
    store: TcpListener,
}

impl<'a> Hosts<'a> {
    fn new(launch: &'a Launch<'a>, run_dir: &'a Path) -> Result<Self, LaunchError> {
        let spec = serde_json::to_string(launch.spec)
            .map_err(LaunchError::system("the spec for the ranks"))?;
        let params = serde_json::to_string(Plan::new(launch.spec).params())
            .map_err(LaunchError::system("the parameters for the ranks"))?;
        let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(LaunchError::system("a socket for the ranks to meet at"))?;
        Ok(Self { launch, run_dir, spec, params, store })
    }

    /// Starts a host, whose first rank is `rank`. It gets the sending ends of its ranks' channels,
    /// and of its own.
    fn spawn(
        &self,
        rank: usize,
        events: &[OwnedFd],
        host_channel: Option<&OwnedFd>,
    ) -> Result<ProcessGroup, LaunchError> {
        let program = &self.launch.program.program;
        let mut command = Command::new(program);
        command.args(&self.launch.program.args).stdin(Stdio::null()).process_group(0);
        let log = match self.launch.program.hosting {
            Hosting::OnePerRank => LogOf::Rank(rank),
            Hosting::Forked => LogOf::Host,
        };
        command.stdout(create(&log.stdout(self.run_dir))?);
        command.stderr(create(&log.stderr(self.run_dir))?);

        self.describe_run(&mut command)?;
        match self.launch.program.hosting {
            Hosting::OnePerRank => {
                command.env("RANK", rank.to_string());
                command.env("LOCAL_RANK", rank.to_string());
            }
            Hosting::Forked => {
                command.env_remove("RANK").env_remove("LOCAL_RANK");
                // libtorch's start-up allocates tens of megabytes in small pieces. Huge pages spare
                // it most of its page faults; where the kernel or libc has none, nothing changes.
                if std::env::var_os("GLIBC_TUNABLES").is_none() {
                    command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
                }
            }
        }
        let numbers: Vec<String> = events.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        command.env(contract::EVENT_FDS, numbers.join(","));
        let mut inherited: Vec<RawFd> = events.iter().map(|fd| fd.as_raw_fd()).collect();
        let store = (rank == 0).then(|| self.store.as_raw_fd());
        let host_channel = host_channel.map(|fd| fd.as_raw_fd());
        for (name, fd) in [(contract::STORE_FD, store), (contract::HOST_FD, host_channel)] {
            match fd {
                Some(fd) => command.env(name, fd.to_string()),
                None => command.env_remove(name),
            };
            inherited.extend(fd);
        }
        prepare_child(&mut command, inherited);
        let child = command
            .spawn()
            .map_err(|cause| LaunchError::Spawn { program: program.clone(), cause })?;
        Ok(ProcessGroup::new(child.id()))
    }

    /// The part of the environment that is the same for every host.
    fn describe_run(&self, command: &mut Command) -> Result<(), LaunchError> {
        let address =
            self.store.local_addr().map_err(LaunchError::system("the ranks' meeting point"))?;
        let world_size = self.launch.spec.world_size.to_string();
        command
            .env(contract::RUN, self.launch.run_id)
            .env(contract::SPEC, &self.spec)
            .env(contract::PARAMS, &self.params)
            .env(contract::RUN_DIR, self.run_dir)
            .env("MASTER_ADDR", address.ip().to_string())
            .env("MASTER_PORT", address.port().to_string())
            .env("WORLD_SIZE", &world_size)
            .env("LOCAL_WORLD_SIZE", &world_size);
        // Ranks share the machine: with a thread per core each, they slow each other down a
        // thousandfold.
        if std::env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        Ok(())
    }
}

fn create(path: &Path) -> Result<File, LaunchError> {
    File::create(path).map_err(|cause| LaunchError::RunDir { path: path.to_owned(), cause })
}

/// Makes the child die with the launcher, and inherit these descriptors and no others.
fn prepare_child(command: &mut Command, inherited: Vec<RawFd>) {
    let launcher = getpid();
    let prepare = move || -> io::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != launcher {
            // The launcher died before the line above took effect.
            return Err(Errno::ESRCH.into());
        }
        for &fd in &inherited {
            // SAFETY: the caller of `spawn` holds these descriptors open for the whole call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: runs between fork and exec, where only async-signal-safe functions may be called:
    // it makes system calls and does not allocate.
    unsafe { command.pre_exec(prepare) };
}
