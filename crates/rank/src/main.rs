//! The program of the native engine's ranks, which is zprobe's only program that links libtorch.
//!
//! `zprobe` starts the program as a rank host, which forks one process per rank, or as a pool, which forks a rank host
//! for each of many runs. Each rank runs the sharded engine on a synthetic model and emits
//! [`zprobe_model::trace::Event`]s on its own channel.

#![allow(
    clippy::disallowed_macros,
    reason = "standard output has the answer that zprobe expects, and standard error is a log"
)]

mod assembly;
mod collective;
mod cuda;
mod dtype;
mod engine;
mod environment;
mod faults;
mod host;
mod model;
mod pool;
mod rank;
mod recorder;
mod sampler;
mod shim;

use anyhow::{Error, Result};
use zprobe_model::spec::Device;
use zprobe_model::trace::contract::GPUS;

use crate::environment::RankEnvironment;

/// The exit code if the program could not start its ranks, for example because an environment variable is missing.
const USAGE: i32 = 2;

fn main() {
    exit_now(match run() {
        Ok(()) => 0,
        Err(err) => {
            complain(&err);
            USAGE
        }
    })
}

fn run() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(GPUS) {
        println!("{}", serde_json::to_string(&cuda::describe())?);
        return Ok(());
    }
    pool::wait_for_run()?;
    let mut environment = RankEnvironment::read()?;
    if environment.spec.device == Device::Cuda {
        cuda::load()?;
    }
    match environment.host_channel.take() {
        Some(channel) => host::fork_ranks(environment, channel),
        None => {
            let channel = environment.event_channels.pop();
            exit_now(rank::main(environment.first_rank, channel, environment))
        }
    }
}

/// Prints an error on standard error, and returns the exit code of a failed rank.
fn complain(err: &Error) -> i32 {
    eprintln!("zprobe-rank: {err:#}");
    1
}

/// Ends the process without libtorch's exit handlers. The handlers take longer than the probed step, and may wait for
/// threads that a forked child does not have.
fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions; the event channel is unbuffered.
    unsafe { nix::libc::_exit(code) }
}
