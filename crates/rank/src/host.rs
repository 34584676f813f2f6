//! The rank host: loads libtorch once, forks the ranks, and reports the exit of each rank.
//!
//! libtorch's static initialisers take longer than the whole probed step. They run once in this single-threaded
//! process, and every rank inherits the result through `fork`.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdout, fork, getpid, getppid};
use zprobe_model::run_dir;
use zprobe_model::trace::contract::LogOf;
use zprobe_model::trace::{Event, Outcome};

use crate::environment::RankEnvironment;
use crate::recorder::EventRecorder;
use crate::{exit_now, rank};

/// Forks one child per event channel and waits for all children.
///
/// The function returns only in the host; each child exits when its rank is done.
pub fn fork_ranks(mut environment: RankEnvironment, host_channel: File) -> Result<()> {
    let recorder = EventRecorder::new(environment.run.clone(), None, host_channel);
    let channels = std::mem::take(&mut environment.event_channels);
    let (host, first_rank) = (getpid(), environment.first_rank);
    let mut children: Vec<Pid> = Vec::new();
    for place in 0..channels.len() {
        let rank = environment.first_rank + place;
        // SAFETY: this process has one thread, so the child may do anything that the parent may.
        match unsafe { fork() }.context("cannot fork a rank")? {
            ForkResult::Parent { child } => {
                children.push(child);
                let pid = child.as_raw().unsigned_abs();
                recorder.emit(Event::RankSpawned { rank, pid, agent: None })?;
            }
            ForkResult::Child => {
                // Dropping `recorder` and `channels` closes the host's channel and those of the other ranks.
                drop(recorder);
                let channel = channels.into_iter().nth(place);
                exit_now(match become_rank(rank, host, &environment.run_dir) {
                    Ok(()) => rank::main(rank, channel, environment),
                    Err(err) => crate::complain(&err),
                });
            }
        }
    }
    drop(channels);
    let mut running = children.len();
    while running > 0 {
        let status = match waitpid(None, None) {
            Err(Errno::EINTR) => continue,
            other => other.context("cannot wait for the ranks")?,
        };
        let (pid, outcome) = match status {
            WaitStatus::Exited(pid, code) => (pid, Outcome::Code(code)),
            WaitStatus::Signaled(pid, signal, _) => (pid, Outcome::Signal(signal as i32)),
            _ => continue,
        };
        if let Some(place) = children.iter().position(|child| *child == pid) {
            running -= 1;
            let rank = first_rank + place;
            recorder.emit(Event::RankExited { rank, outcome })?;
        }
    }
    Ok(())
}

/// Prepares a forked child for its rank: the child dies with its host, and writes its output to its own logs.
fn become_rank(rank: usize, host: Pid, dir: &Path) -> Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    // If the host died before the call above, this process gets no signal.
    if getppid() != host {
        bail!("the rank host died before its rank started");
    }
    let create = |path: PathBuf| {
        run_dir::create(&path).with_context(|| format!("cannot write {}", path.display()))
    };
    let log = LogOf::Rank(rank);
    dup2_stdout(create(log.stdout(dir))?)?;
    dup2_stderr(create(log.stderr(dir))?)?;
    Ok(())
}
