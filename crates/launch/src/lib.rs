//! Performs a run, from its spec to its trace: one process per rank is started, watched, recorded
//! and reaped.
//!
//! A rank is *any program that speaks the protocol* of `docs/protocol.md`: it writes
//! [`trace::Record`](zprobe_model::trace::Record)s, one JSON object a line, to a descriptor of its own,
//! and never to stdout. What a rank does wrong (it dies, hangs, or writes something else) is data
//! about the engine under test, so it ends up in the trace; an `Err` from here means that there
//! was nothing to watch in the first place.
//!
//! One thread does everything, around one `poll`: it cannot fall behind without the ranks' pipes
//! filling up, so its memory is bounded, and no misbehaviour of a rank can leave a reader stuck.
//!
//! The ranks of a run may be started by several such processes, on several machines; see [`agents`].

pub mod adapters;
pub mod agents;
mod books;
mod channel;
mod conversation;
pub mod exec;
mod group;
mod host;
pub mod job;
mod joining;
mod local;
mod log_tail;
mod news;
mod place;
mod pool;
mod ranks;
mod recorder;
mod selection;
mod sender;
mod signals;
mod spawn;
mod stacks;
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

pub use joining::UserCommand;
pub use pool::Pool;
pub use recorder::record_all;
pub use signals::{Stop, is_stopping, put_signals_right};
pub use spawn::library_path;
pub use stacks::stack_signal;
use strays::Strays;
use surroundings::advice;

use agents::{Leader, Team};
use joining::Joined;
use local::Local;
use place::Place;
use ranks::Ranks;
use supervisor::Others;

use zprobe_model::spec::RunSpec;
use zprobe_model::trace::Record;

/// The program that ranks run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgram {
    /// Executable; looked up in `PATH` if it has no slash.
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Way in which the processes of its ranks are created.
    pub hosting: Hosting,
    /// Directories that the dynamic loader searches first for the libraries of the program.
    pub library_path: Vec<PathBuf>,
}

/// The way in which the processes of ranks are created: started by the launcher, or forked from a
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hosting {
    /// The launcher starts the program once for each rank; each process is a rank.
    OnePerRank,
    /// The launcher starts the program once. The program loads its libraries once, forks the ranks,
    /// waits for them, and says on its host channel how they end.
    Forked,
}

/// Origin of the hosts of a run.
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

    /// Marks of the processes that run `run` may leave behind.
    fn strays(&self, run: &str) -> Strays {
        match self {
            Source::Cold(_) => Strays::of(run),
            Source::Warm(pool) => pool.strays().and(run),
        }
    }
}

/// All inputs of a run.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Id of the run, which every record carries.
    pub run_id: &'a str,
    /// Specification of the run.
    pub spec: &'a RunSpec,
    /// Origin of the hosts of the run.
    pub source: Source<'a>,
    /// Directory for the trace and the logs of the ranks; created if it does not exist.
    pub run_dir: &'a Path,
}

/// Processes that are left of a run that is over. All other facts are in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "processes may have survived"]
pub struct Ended {
    /// Ids of processes that did not die of SIGKILL, because they are stuck inside the kernel, for
    /// example in a device driver. Empty in every other case.
    pub survivors: Vec<u32>,
}

/// Error that prevented a run from being started or recorded.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Something in the run directory cannot be written.
    #[error(
        "cannot write {path}: {cause}; {}",
        advice(.cause, "choose another run directory with --out")
    )]
    RunDir {
        /// Path that could not be written.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// Something that the processes of a command have written cannot be read.
    #[error(
        "cannot read {path}: {cause}; {}",
        advice(.cause, "leave the run directory alone while its run goes on")
    )]
    Unreadable {
        /// Path that could not be read.
        path: PathBuf,
        /// Error of the operating system.
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
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The user's command does not start.
    #[error(
        "cannot start {}: {cause}; {}",
        .program.display(),
        advice(.cause, "write it after `--` exactly as you start it without zprobe")
    )]
    Command {
        /// The program.
        program: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// The operating system refuses a pipe, a socket or a signal handler.
    #[error(
        "cannot set up {what}: {cause}; {}",
        advice(.cause, "check the limits of this shell with `ulimit -a`")
    )]
    System {
        /// Resource that was being set up, in words.
        what: &'static str,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// Ranks would not have the stack that they need.
    #[error(
        "this shell gives every program a stack of {kib} KiB, and a rank needs {needed}; raise it with \
         `ulimit -s 8192`"
    )]
    Stack {
        /// Stack limit of the shell, in KiB.
        kib: u64,
        /// Stack size that a rank needs, in KiB.
        needed: u64,
    },
    /// The process of a pool has ended, or does not answer as it should.
    #[error(
        "the pool of {program} {failure}; start another pool, or run without one{}",
        last_words(.stderr)
    )]
    Pool {
        /// The program.
        program: PathBuf,
        /// Failure of the pool.
        failure: PoolFailure,
        /// The last lines of its standard error.
        stderr: Option<String>,
    },
    /// Another agent of the job could not start its ranks.
    #[error("{machine}: {message}")]
    Agent {
        /// Name of its machine.
        machine: String,
        /// Its error.
        message: String,
    },
    /// The commands of two agents have both started the same rank.
    #[error(
        "the commands of processes {} and {} of this job both have a rank {rank}, so that they train apart: make them \
         one job (with torchrun: --nnodes, and the same --rdzv-endpoint or --master-addr on each machine)",
        .agents[0], .agents[1]
    )]
    Apart {
        /// The rank.
        rank: usize,
        /// Numbers of the agents.
        agents: [usize; 2],
    },
    /// More ranks than a pool can fork for one run.
    #[error(
        "{ranks} ranks are too many for a pool: the kernel hands over the channels of {most} ranks \
         at once; run without a pool"
    )]
    PoolWorld {
        /// Number of ranks of the run.
        ranks: usize,
        /// Largest number of ranks of a run over a pool.
        most: usize,
    },
}

/// Reason why a pool cannot serve a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFailure {
    /// The process of the pool has exited with this code.
    #[error("has exited with code {0}")]
    Exited(i32),
    /// The process of the pool was ended by this signal.
    #[error("was ended by signal {0}")]
    Killed(i32),
    /// The process of the pool did not report its engine as loaded within this time.
    #[error("was not ready within {0:?}")]
    NotReady(Duration),
    /// The pool did not fork a host for the run.
    #[error("did not fork a host for the run")]
    NoHost,
}

/// End of an error message that quotes standard error.
fn last_words(stderr: &Option<String>) -> String {
    stderr.as_ref().map_or_else(String::new, |tail| format!(". Its last words:\n{tail}"))
}

impl LaunchError {
    /// Returns a function for `map_err` that wraps the operating system's error on reading `path`.
    fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Unreadable { path, cause }
    }

    /// Returns a function for `map_err` that wraps the operating system's error on writing to `path`.
    fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::RunDir { path, cause }
    }

    /// Returns a function for `map_err` that wraps the operating system's error on a request for
    /// `what`.
    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::System { what, cause: cause.into() }
    }
}

impl Launch<'_> {
    /// Performs the run to its end, whether it succeeds or not, and leaves a trace in the run
    /// directory.
    ///
    /// `observer` sees each record as it is written. When this returns (or unwinds), no process
    /// of the run is left, except for [`Ended::survivors`].
    ///
    /// Runs of one process take place one after the other: while one lasts, SIGINT, SIGTERM and
    /// SIGHUP end that run instead of the process (a second one ends the process at once). The
    /// calling thread must outlive the run: the kernel kills the ranks when the thread that started
    /// them ends.
    ///
    /// # Errors
    /// When the program cannot be started, the pool does not fork a host, or the trace or the logs
    /// cannot be written.
    pub fn run(&self, observer: &mut dyn FnMut(&Record)) -> Result<Ended, LaunchError> {
        let place = Place::of_all(self.spec.world_size)?;
        self.at(&place, Others::Nobody, observer)
    }

    /// Performs the run as [`Launch::run`] does, together with other agents, as their leader: the trace
    /// has the ranks of all. `repeat` is its number among several.
    ///
    /// # Errors
    /// As [`Launch::run`], and when another agent cannot start its ranks.
    pub fn lead(
        &self,
        team: &mut Team,
        repeat: Option<usize>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Ended, LaunchError> {
        let place = team.begin(self.run_id, repeat)?;
        self.at(&place, Others::Team(team), observer)
    }

    /// Performs this process's part of a run that another agent leads. The trace has the ranks of this
    /// process alone; `port` is that of the ranks' TCPStore.
    ///
    /// # Errors
    /// As [`Launch::run`].
    pub fn follow(&self, leader: &mut Leader, port: u16) -> Result<Ended, LaunchError> {
        let place = leader.place(port)?;
        self.at(&place, Others::Leader(leader), &mut |_| {})
    }

    /// Performs the part of the run that is at `place`.
    fn at(
        &self,
        place: &Place,
        others: Others<'_>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Ended, LaunchError> {
        let start = |run_dir: &Path| -> Result<Box<dyn Ranks>, LaunchError> {
            Ok(Box::new(Local::start(self, run_dir, place)?))
        };
        let run = Run { id: self.run_id, spec: self.spec, dir: self.run_dir };
        supervisor::run(run, start, others, observer)
    }
}

/// A run, whatever its ranks are.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    /// Id of the run.
    id: &'a str,
    spec: &'a RunSpec,
    /// Directory of the run.
    dir: &'a Path,
}

/// All inputs of a run of a user's command, whose processes join as its ranks.
#[derive(Clone, Copy, Debug)]
pub struct Joining<'a> {
    /// Id of the run, by which processes that are left behind are recognised.
    pub run_id: &'a str,
    /// Specification of the run, as far as it is known at the start; see [`RunSpec::is_settled`].
    pub spec: &'a RunSpec,
    /// The command.
    pub command: UserCommand<'a>,
    /// Directory for the trace; created if it does not exist.
    pub run_dir: &'a Path,
}

impl Joining<'_> {
    /// Runs the command to its end, as [`Launch::run`] does with ranks that it starts itself, and leaves a
    /// trace in the run directory.
    ///
    /// # Errors
    /// When the command does not start, or the trace cannot be written.
    pub fn run(&self, observer: &mut dyn FnMut(&Record)) -> Result<Ended, LaunchError> {
        self.at(None, Others::Nobody, observer)
    }

    /// Runs the command as [`Joining::run`] does, together with those of other agents, as their leader: the
    /// trace has the ranks of all.
    ///
    /// # Errors
    /// As [`Joining::run`], and when another agent cannot start its command, or commands train apart.
    pub fn lead(
        &self,
        team: &mut Team,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Ended, LaunchError> {
        team.begin_commands(self.run_id);
        self.at(Some(0), Others::Team(team), observer)
    }

    /// Runs the command as this process's part of a run that another agent leads. The trace has the ranks
    /// of this command alone.
    ///
    /// # Errors
    /// As [`Joining::run`].
    pub fn follow(&self, leader: &mut Leader) -> Result<Ended, LaunchError> {
        self.at(Some(leader.own_index()), Others::Leader(leader), &mut |_| {})
    }

    /// Runs the command of the agent with this number, if there are several.
    fn at(
        &self,
        agent: Option<usize>,
        others: Others<'_>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Ended, LaunchError> {
        let start = |_: &Path| -> Result<Box<dyn Ranks>, LaunchError> {
            Ok(Box::new(Joined::start(&self.command, self.run_id, agent)?))
        };
        let run = Run { id: self.run_id, spec: self.spec, dir: self.run_dir };
        supervisor::run(run, start, others, observer)
    }
}
