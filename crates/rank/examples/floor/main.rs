//! The minimal work of a run on libtorch, as a lower bound for the duration of `zprobe run`.
//!
//! The ranks of this program join a TCPStore and a Gloo group, issue the collectives of
//! `zprobe run --stage 1 --ga 4 --nproc-per-node RANKS` and leave. The program has no model, no recorder and no
//! agreement before the collectives. `cargo xtask bench` starts it; see `docs/benchmarks.md`.

#![allow(clippy::disallowed_macros, reason = "the output is a log")]

#[path = "../../src/dtype.rs"]
#[expect(dead_code, reason = "ranks record, too")]
mod dtype;
#[path = "../../src/engine/partitioning.rs"]
#[expect(dead_code, reason = "ranks reduce buckets, too")]
mod partitioning;
#[path = "../../src/shim/mod.rs"]
#[expect(dead_code, reason = "ranks go backward, too")]
mod shim;

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail, ensure};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{ForkResult, fork};
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::{Plan, RunSpec, SpecRequest};

use crate::dtype::kind_of;
use crate::partitioning::Partitioning;
use crate::shim::c10d::{GlooBackend, Store};

/// The time limit for each wait of a rank for the others.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    exit_now(run().map_or_else(|err| complain(&err), |()| 0))
}

/// `floor fork RANKS` runs a host that forks its ranks; `floor rank RANKS RANK PORT` runs a single rank. The standard
/// input of rank 0 is the listening socket of the TCPStore.
fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fork", ranks] => fork_ranks(&spec(ranks)?),
        ["rank", ranks, rank, port] => {
            let rank = rank.parse().context("RANK is a number")?;
            let port = port.parse().context("PORT is a number")?;
            // The descriptor is duplicated, because the store closes it, and standard input must stay open.
            let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
            rank_main(&spec(ranks)?, rank, port, (rank == 0).then_some(listener))
        }
        _ => {
            bail!("usage: floor fork RANKS, or floor rank RANKS RANK PORT")
        }
    }
}

/// Forks all ranks and waits until they have exited.
fn fork_ranks(spec: &RunSpec) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let ranks = 0..spec.world_size;
    for rank in ranks.clone() {
        // SAFETY: this process has one thread, so the child may do anything that the parent may.
        if let ForkResult::Child = unsafe { fork() }.context("cannot fork a rank")? {
            let listener = (rank == 0).then(|| OwnedFd::from(listener));
            exit_now(
                rank_main(spec, rank, port, listener).map_or_else(|err| complain(&err), |()| 0),
            );
        }
    }
    drop(listener);
    for _ in ranks {
        let status = wait()?;
        ensure!(matches!(status, WaitStatus::Exited(_, 0)), "a rank failed: {status:?}");
    }
    Ok(())
}

/// Runs one rank, and ends its process.
fn rank_main(spec: &RunSpec, rank: usize, port: u16, listener: Option<OwnedFd>) -> Result<()> {
    tch::set_num_threads(1);
    let store = Store::join(&Ipv4Addr::LOCALHOST.to_string(), port, listener, TIMEOUT)?;
    let gloo = GlooBackend::new(&store, rank, spec.world_size, "lo", TIMEOUT)?;
    collectives(spec, &gloo)?;
    // As in every run, the rank that hosts the store waits until all ranks have left.
    store.set(&format!("left/{rank}"), &[])?;
    if rank == 0 {
        let everybody: Vec<String> = (0..spec.world_size).map(|r| format!("left/{r}")).collect();
        store.wait_get(&everybody, TIMEOUT)?;
    }
    // The process ends before the destructors run, which would wait for libtorch's threads.
    exit_now(0)
}

/// Issues the collectives of all steps, on buffers with the sizes and dtypes of the run.
fn collectives(spec: &RunSpec, gloo: &GlooBackend) -> Result<()> {
    let partitioning = Partitioning::new(spec, &Plan::new(spec));
    let zeros = |len: usize, kind: Kind| -> Result<Tensor> {
        Ok(Tensor::f_zeros([i64::try_from(len)?], (kind, Device::Cpu))?)
    };
    let gradient = zeros(partitioning.numel(), kind_of(spec.narrowest_comm_dtype()))?;
    let norm = zeros(1, Kind::Double)?;
    let parameters = zeros(partitioning.numel(), kind_of(spec.dtype))?;
    let own = zeros(partitioning.partition_numel(), kind_of(spec.dtype))?;
    for _ in 0..spec.steps {
        gloo.all_reduce_sum(&gradient)?.wait()?;
        gloo.all_reduce_sum(&norm)?.wait()?;
        gloo.all_gather(&parameters, &own)?.wait()?;
    }
    Ok(())
}

/// The specification of the run whose collectives are issued.
fn spec(ranks: &str) -> Result<RunSpec> {
    let request = SpecRequest {
        world_size: Some(ranks.parse().context("RANKS is a number")?),
        stage: Some(1),
        gradient_accumulation_steps: Some(4),
        ..SpecRequest::default()
    };
    Ok(request.resolve()?)
}

/// Prints an error on standard error, and returns the exit code of a failed rank.
fn complain(err: &Error) -> i32 {
    eprintln!("floor: {err:#}");
    1
}

/// Ends the process without libtorch's exit handlers, as ranks do.
fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { nix::libc::_exit(code) }
}
