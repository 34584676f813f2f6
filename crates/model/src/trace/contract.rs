//! Names on which launcher and ranks agree, so that events find their way into the trace: those of
//! environment variables and files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::spec::RunSpec;

/// Variable: id of the run, for [`Record::run`](crate::trace::Record::run).
pub const RUN: &str = "ZPROBE_RUN";

/// Variable: the [`RunSpec`] as JSON.
pub const SPEC: &str = "ZPROBE_SPEC";

/// Variable: the parameters of the synthetic model, in flat order, as JSON: a list of
/// [`crate::spec::plan::Param`].
pub const PARAMS: &str = "ZPROBE_PARAMS";

/// Variable: what goes forward and backward in each microbatch, as JSON: a
/// [`Workload`](crate::spec::Workload).
pub const WORKLOAD: &str = "ZPROBE_WORKLOAD";

/// Variable: the event channel (a descriptor number) of each rank of this process, separated by
/// commas, in rank order.
pub const EVENT_FDS: &str = "ZPROBE_EVENT_FDS";

/// Variable: the host channel (a descriptor number), for a process that forks its ranks.
pub const HOST_FD: &str = "ZPROBE_HOST_FD";

/// Variable: a listening TCP socket (a descriptor number) at `MASTER_ADDR:MASTER_PORT`, for the
/// process of rank 0.
pub const STORE_FD: &str = "ZPROBE_STORE_FD";

/// Variable: the run directory, for a process that forks its ranks and redirects their output.
pub const RUN_DIR: &str = "ZPROBE_RUN_DIR";

/// Variable: the socket (a descriptor number) of a pool, a process that stays and forks a host for
/// each run.
pub const POOL_FD: &str = "ZPROBE_POOL_FD";

/// Argument with which the native rank program says what it finds of CUDA: a
/// [`Gpus`](crate::spec::Gpus) as JSON, on standard output.
pub const GPUS: &str = "gpus";

/// Time for which ranks wait for each other before they give up: a hundred timeouts of the run, but
/// no more seconds than c10d can count in milliseconds. The launcher's watchdog decides earlier: it
/// knows the last event of every rank, and lets ranks wait for one that still works.
pub fn patience(spec: &RunSpec) -> Duration {
    const MOST: u64 = 2_000_000;
    Duration::from_secs(spec.timeout_s.saturating_mul(100).min(MOST))
}

/// Process whose output a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOf {
    /// The rank of this number.
    Rank(usize),
    /// The host: the process that forks the ranks.
    Host,
    /// The pool: the process that forks a host for each run.
    Pool,
}

impl LogOf {
    /// File in `dir`, the run directory for ranks and hosts, that standard output goes to.
    pub fn stdout(self, dir: &Path) -> PathBuf {
        self.file(dir, "stdout")
    }

    /// File in `dir`, the run directory for ranks and hosts, that standard error goes to.
    pub fn stderr(self, dir: &Path) -> PathBuf {
        self.file(dir, "stderr")
    }

    fn file(self, dir: &Path, stream: &str) -> PathBuf {
        dir.join(match self {
            LogOf::Rank(rank) => format!("rank-{rank}.{stream}.log"),
            LogOf::Host => format!("host.{stream}.log"),
            LogOf::Pool => format!("pool.{stream}.log"),
        })
    }
}
