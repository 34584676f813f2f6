//! The launcher's instructions to a rank host, in environment variables (see `docs/protocol.md`).

use std::env;
use std::fs::File;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, ensure};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::contract;

/// The instructions to a rank host.
pub struct RankEnvironment {
    /// The identifier of the run.
    pub run: String,
    /// The specification of the run.
    pub spec: RunSpec,
    /// The lowest rank of this process.
    pub first_rank: usize,
    /// The local rank of `first_rank`: its index on the machine, from 0.
    pub first_local_rank: usize,
    /// The event channels of this process's ranks, in rank order.
    pub event_channels: Vec<File>,
    /// The event channel of the host itself; `None` if this process is a single rank.
    pub host_channel: Option<File>,
    /// The listening socket for the TCPStore; only in the process that hosts rank 0.
    pub store_listener: Option<OwnedFd>,
    /// The host name of the TCPStore.
    pub store_host: String,
    /// The port of the TCPStore.
    pub store_port: u16,
    /// The network interface over which Gloo reaches the other ranks.
    pub interface: String,
    /// The directory of the ranks' logs.
    pub run_dir: PathBuf,
}

impl RankEnvironment {
    /// Reads the instructions from the environment. Takes ownership of the file descriptors, so call it only once.
    pub fn read() -> Result<Self> {
        let spec = serde_json::from_str(&variable(contract::SPEC)?).with_context(|| {
            format!("{} is not a run specification of this version", contract::SPEC)
        })?;
        let event_channels = variable(contract::EVENT_FDS)?
            .split(',')
            .map(|fd| Ok(File::from(descriptor(contract::EVENT_FDS, fd)?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            run: variable(contract::RUN)?,
            spec,
            first_rank: number("RANK")?,
            first_local_rank: number("LOCAL_RANK")?,
            event_channels,
            host_channel: optional_descriptor(contract::HOST_FD)?.map(File::from),
            store_listener: optional_descriptor(contract::STORE_FD)?,
            store_host: variable("MASTER_ADDR")?,
            store_port: parsed("MASTER_PORT", &variable("MASTER_PORT")?)?,
            interface: variable("GLOO_SOCKET_IFNAME")?,
            // A path need not be valid UTF-8.
            run_dir: env::var_os(contract::RUN_DIR).map_or_else(PathBuf::new, PathBuf::from),
        })
    }
}

/// The value of a numeric environment variable that torchrun also sets, such as `RANK`.
fn number(name: &str) -> Result<usize> {
    parsed(name, &variable(name)?)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| {
        anyhow!("{name} is not set; do not start zprobe-rank yourself: use `zprobe run`")
    })
}

fn parsed<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| anyhow!("{name}={text}: not a number"))
}

/// The file descriptor whose number a variable holds; `None` if the variable is not set. Takes ownership of the
/// descriptor, so call it only once.
pub fn optional_descriptor(name: &str) -> Result<Option<OwnedFd>> {
    env::var(name).ok().map(|text| descriptor(name, &text)).transpose()
}

fn descriptor(name: &str, text: &str) -> Result<OwnedFd> {
    let fd: RawFd = parsed(name, text)?;
    ensure!(fd > 2, "{name}={text}: standard streams cannot be event channels");
    // SAFETY: the launcher opened this descriptor for this process; each variable is read once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
