//! The launcher's instructions to a rank host, in environment variables (see `docs/protocol.md`).

use std::env;
use std::fs::File;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, ensure};
use zprobe_model::spec::RunSpec;
use zprobe_model::trace::contract;

/// Instructions to a rank host.
pub struct Environment {
    /// Identifier of the run.
    pub run: String,
    /// Specification of the run.
    pub spec: RunSpec,
    /// The first of the ranks of this process.
    pub first_rank: usize,
    /// Local rank of the first of them: its number on the machine.
    pub first_local_rank: usize,
    /// Event channel of each rank of this process, in rank order.
    pub event_channels: Vec<File>,
    /// The host's own channel, when it forks its ranks.
    pub host_channel: Option<File>,
    /// The listening socket for the TCPStore, on the host of rank 0.
    pub store_listener: Option<OwnedFd>,
    /// Host of the TCPStore.
    pub store_host: String,
    /// Port of the TCPStore.
    pub store_port: u16,
    /// Network interface over which Gloo reaches the other ranks.
    pub interface: String,
    /// Directory of the ranks' logs.
    pub run_dir: PathBuf,
}

impl Environment {
    /// Reads the instructions. Takes the descriptors over, so call it once.
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

/// A number that torchrun's contract puts into the environment, such as `RANK`.
fn number(name: &str) -> Result<usize> {
    parsed(name, &variable(name)?)
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| {
        anyhow!("{name} is not set; zprobe-rank is started by zprobe: use `zprobe run`")
    })
}

fn parsed<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| anyhow!("{name}={text}: not a number"))
}

/// The descriptor that a variable names, if it is set. Takes it over, so call it once.
pub fn optional_descriptor(name: &str) -> Result<Option<OwnedFd>> {
    env::var(name).ok().map(|text| descriptor(name, &text)).transpose()
}

fn descriptor(name: &str, text: &str) -> Result<OwnedFd> {
    let fd: RawFd = parsed(name, text)?;
    ensure!(fd > 2, "{name}={text}: standard streams cannot be event channels");
    // SAFETY: the launcher opened this descriptor for this process; each variable is read once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
