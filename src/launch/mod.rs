//! From a spec to a trace: one process per rank, started, watched, recorded and reaped.
//!
//! A rank is *any program that speaks the protocol* of `docs/protocol.md`: it writes
//! [`trace::Record`](crate::trace::Record)s, one JSON object a line, to a descriptor of its own,
//! and never to stdout. What a rank does wrong (it dies, hangs, or writes something else) is data
//! about the engine under test, so it ends up in the trace; an `Err` from here means that there
//! was nothing to watch in the first place.
//!
//! One thread does everything, around one `poll`: it cannot fall behind without the ranks' pipes
//! filling up, so its memory is bounded, and no misbehaviour of a rank can leave a reader stuck.

mod channel;
mod conversation;
mod group;
mod host;
mod log_tail;
mod pool;
mod recorder;
mod selection;
mod sender;
mod signals;
mod spawn;
mod starvation;
mod strays;
mod supervisor;
mod surroundings;
mod wait;
mod watchdog;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use pool::Pool;
pub use signals::{Stop, put_signals_right};
pub use spawn::library_path;
use strays::Strays;
use surroundings::advice;

use crate::spec::RunSpec;
use crate::trace::Record;

/// The program that ranks run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgram {
    /// Executable; looked up in `PATH` when it has no slash.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// How its ranks come to be.
    pub hosting: Hosting,
    /// Directories in which the dynamic loader looks for its libraries first.
    pub library_path: Vec<PathBuf>,
}

/// How ranks come to be: which processes the launcher starts, and who forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hosting {
    /// The launcher starts the program once for each rank; each process is a rank.
    OnePerRank,
    /// The launcher starts the program once. It loads its libraries once, forks the ranks, waits
    /// for them, and says on its host channel how they end.
    Forked,
}

/// Where the hosts of a run come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// This program is started for the run.
    Cold(&'a RankProgram),
    /// A process that has loaded its engine already forks a host, which forks the ranks.
    Warm(&'a Pool),
}

impl Source<'_> {
    fn hosting(&self) -> Hosting {
        match self {
            Source::Cold(program) => program.hosting,
            Source::Warm(_) => Hosting::Forked,
        }
    }

    /// What run `run` may leave behind.
    fn strays(&self, run: &str) -> Strays {
        match self {
            Source::Cold(_) => Strays::of(run),
            Source::Warm(pool) => pool.strays().and(run),
        }
    }
}

/// Everything that a run needs.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Identifies the run in every record.
    pub run_id: &'a str,
    /// What to run.
    pub spec: &'a RunSpec,
    /// Who runs it.
    pub source: Source<'a>,
    /// Where the trace and the ranks' logs go; created when it does not exist.
    pub run_dir: &'a Path,
}

/// What is left of a run that is over. Everything else stands in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "processes may have survived"]
pub struct Ended {
    /// Ids of processes that did not die of SIGKILL: they are stuck inside the kernel, which
    /// happens to processes in a device driver. Empty in every other case.
    pub survivors: Vec<u32>,
}

/// Why a run could not be started or recorded.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Something in the run directory cannot be written.
    #[error(
        "cannot write {path}: {cause}; {}",
        advice(.cause, "choose another run directory with --out")
    )]
    RunDir {
        /// What was to be written.
        path: PathBuf,
        /// The operating system's answer.
        cause: io::Error,
    },
    /// The program does not start.
    #[error(
        "cannot start a rank with {program}: {cause}; {}",
        advice(.cause, "check that it exists and is executable")
    )]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The operating system's answer.
        cause: io::Error,
    },
    /// The operating system refuses a pipe, a socket or a signal handler.
    #[error(
        "cannot set up {what}: {cause}; {}",
        advice(.cause, "check the limits of this shell with `ulimit -a`")
    )]
    System {
        /// What was being set up.
        what: &'static str,
        /// The operating system's answer.
        cause: io::Error,
    },
    /// Ranks would not have the stack that they need.
    #[error(
        "this shell gives every program a stack of {kib} KiB, and a rank needs {needed}; raise it with \
         `ulimit -s 8192`"
    )]
    Stack {
        /// The limit.
        kib: u64,
        /// What a rank needs.
        needed: u64,
    },
    /// The process of a pool does not do its part.
    #[error(
        "the pool of {program} {failure}; start another pool, or run without one{}",
        last_words(.stderr)
    )]
    Pool {
        /// The program.
        program: PathBuf,
        /// What is wrong.
        failure: PoolFailure,
        /// The last lines of its standard error.
        stderr: Option<String>,
    },
    /// More ranks than a pool can fork for one run.
    #[error(
        "{ranks} ranks are too many for a pool: the kernel hands over the channels of {most} ranks \
         at once; run without a pool"
    )]
    PoolWorld {
        /// Ranks of the run.
        ranks: usize,
        /// Most ranks of a run over a pool.
        most: usize,
    },
}

/// What is wrong with a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFailure {
    /// Its process is gone.
    #[error("has exited with code {0}")]
    Exited(i32),
    /// Its process is gone.
    #[error("was ended by signal {0}")]
    Killed(i32),
    /// Its process did not say that its engine is loaded.
    #[error("did not say that it is ready, and had {0:?} for it")]
    NotReady(Duration),
    /// There is no host for a run.
    #[error("did not fork a host for the run")]
    NoHost,
}

/// The end of a message that quotes standard error.
fn last_words(stderr: &Option<String>) -> String {
    stderr.as_ref().map_or_else(String::new, |tail| format!(". Its last words:\n{tail}"))
}

impl LaunchError {
    /// For `map_err`: wraps the operating system's answer to a request for `what`.
    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::System { what, cause: cause.into() }
    }
}

impl Launch<'_> {
    /// Runs to the end, whatever end that is, and leaves a trace in the run directory.
    ///
    /// `observer` sees each record as it is written. When this returns (or unwinds), no process
    /// of the run is left, except for [`Ended::survivors`].
    ///
    /// Runs of one process take place one after the other: while one lasts, SIGINT, SIGTERM and SIGHUP
    /// end that run instead of the process (a second one ends the process at once). The calling
    /// thread must outlive the run: the kernel kills the ranks when the thread that started them
    /// ends.
    ///
    /// # Errors
    /// When the program cannot be started, the pool does not fork a host, or the trace or the logs
    /// cannot be written.
    pub fn run(&self, observer: &mut dyn FnMut(&Record)) -> Result<Ended, LaunchError> {
        supervisor::run(self, observer)
    }
}
