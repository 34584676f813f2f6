//! Names that launcher and ranks share, so that events reach the trace: the names of environment variables and files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::spec::RunSpec;

/// The variable with the id of the run, for [`Record::run`](crate::trace::Record::run).
pub const RUN: &str = "ZPROBE_RUN";

/// The variable with the [`RunSpec`] as JSON.
pub const SPEC: &str = "ZPROBE_SPEC";

/// The variable with the parameters of the synthetic model, in flat order: a list of [`crate::spec::plan::Param`] as
/// JSON.
pub const PARAMS: &str = "ZPROBE_PARAMS";

/// The variable with the terms of the losses of each microbatch: a [`Workload`](crate::spec::Workload) as JSON.
pub const WORKLOAD: &str = "ZPROBE_WORKLOAD";

/// The variable with the event channels of the ranks of this process: descriptor numbers in rank order, separated by
/// commas.
pub const EVENT_FDS: &str = "ZPROBE_EVENT_FDS";

/// The variable with the host channel, a descriptor number, for a process that forks its ranks.
pub const HOST_FD: &str = "ZPROBE_HOST_FD";

/// The variable with the descriptor number of a TCP socket that listens at `MASTER_ADDR:MASTER_PORT`, for the process
/// of rank 0.
pub const STORE_FD: &str = "ZPROBE_STORE_FD";

/// The variable with the run directory, for a process that forks its ranks and redirects their output.
pub const RUN_DIR: &str = "ZPROBE_RUN_DIR";

/// The variable with the descriptor number of a pool's socket. A pool is a process that stays alive and forks a host
/// for each run.
pub const POOL_FD: &str = "ZPROBE_POOL_FD";

/// The argument with which the native rank program prints the CUDA devices that it finds: a
/// [`Gpus`](crate::spec::Gpus) as JSON, on standard output.
pub const GPUS: &str = "gpus";

/// Returns the time for which ranks wait for each other before they give up: a hundred timeouts of the run, but at
/// most the seconds that c10d can count in milliseconds. The launcher's watchdog decides earlier, because it knows
/// the last event of every rank, and lets ranks wait for a rank that still works.
pub fn patience(spec: &RunSpec) -> Duration {
    const MOST: u64 = 2_000_000;
    Duration::from_secs(spec.timeout_s.saturating_mul(100).min(MOST))
}

/// The process whose output a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOf {
    /// The rank with this number.
    Rank(usize),
    /// The host, which is the process that forks the ranks.
    Host,
    /// The pool, which is the process that forks a host for each run.
    Pool,
}

impl LogOf {
    /// Returns the file for standard output in `dir`, which is the run directory for ranks and hosts.
    pub fn stdout(self, dir: &Path) -> PathBuf {
        self.file(dir, "stdout")
    }

    /// Returns the file for standard error in `dir`, which is the run directory for ranks and hosts.
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
