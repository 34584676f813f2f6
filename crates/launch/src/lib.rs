//! Performs a run, from its spec to its trace: one process per rank is started, watched, recorded and reaped.
//!
//! A rank is *any program that speaks the protocol* of `docs/protocol.md`: it writes
//! [`trace::Record`](zprobe_model::trace::Record)s, one JSON object per line, to its own descriptor, and never to
//! stdout. If a rank dies, hangs, or writes something else, this is data about the engine under test and goes into the
//! trace. A function returns `Err` only if there was no run to watch.
//!
//! One thread does all the work in a single `poll` loop. If the thread is slow, the ranks' pipes fill up and the
//! ranks wait, so memory stays bounded, and no misbehaviour of a rank can block a reader.
//!
//! The ranks of a run may be started by several zprobe processes, on several machines; see [`agents`].

pub mod adapters;
pub mod agents;
mod channel;
pub mod exec;
mod group;
mod host;
mod host_channel;
pub mod job;
mod joining;
mod line_checker;
mod local;
mod log_tail;
mod pool;
mod rank_report;
mod rank_share;
mod ranks;
mod run_state;
mod selection;
mod signals;
mod spawn;
mod stacks;
mod starvation;
mod strays;
mod supervisor;
mod surroundings;
mod trace_writer;
mod wait;
mod watchdog;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use joining::UserCommand;
pub use pool::Pool;
pub use signals::{Stop, is_stopping, put_signals_right};
pub use spawn::library_path;
pub use stacks::stack_signal;
use strays::Strays;
use surroundings::advice;
pub use trace_writer::record_all;

use agents::{Leader, Team};
use joining::Joined;
use local::LocalRanks;
use rank_share::RankShare;
use ranks::RankProcesses;
use supervisor::OtherAgents;

use zprobe_model::spec::RunSpec;
use zprobe_model::trace::Record;

/// The program that each rank of a run executes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgram {
    /// The executable, which is looked up in `PATH` if its path has no slash.
    pub program: PathBuf,
    /// The command-line arguments of the rank program.
    pub args: Vec<OsString>,
    /// The way in which the processes of the ranks are created.
    pub hosting: Hosting,
    /// Directories that the dynamic loader searches first for the libraries of the program.
    pub library_path: Vec<PathBuf>,
}

/// The way in which rank processes are created: started by the launcher, or forked from a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hosting {
    /// The launcher starts the program once for each rank, and each process is one rank.
    OnePerRank,
    /// The launcher starts the program once. The program loads its libraries, forks the ranks, waits for them, and
    /// reports on its host channel how each rank ended.
    Forked,
}

/// The source of the host processes of a run.
#[derive(Clone, Copy, Debug)]
pub enum HostSource<'a> {
    /// A program that the launcher starts for this run.
    Cold(&'a RankProgram),
    /// A pool process that has already loaded its engine. The pool forks a host, and the host forks the ranks.
    Warm(&'a Pool),
}

impl HostSource<'_> {
    fn hosting(&self) -> Hosting {
        match self {
            HostSource::Cold(program) => program.hosting,
            HostSource::Warm(_) => Hosting::Forked,
        }
    }

    /// Returns the criteria for the stray processes that the run `run` may leave.
    fn strays(&self, run: &str) -> Strays {
        match self {
            HostSource::Cold(_) => Strays::of(run),
            HostSource::Warm(pool) => pool.strays().and(run),
        }
    }
}

/// All inputs of a run whose ranks zprobe starts.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The id of the run, which every record carries.
    pub run_id: &'a str,
    /// The specification of the run.
    pub spec: &'a RunSpec,
    /// The source of the host processes of the run.
    pub source: HostSource<'a>,
    /// The directory for the trace and the logs of the ranks; created if it does not exist.
    pub run_dir: &'a Path,
}

/// The processes that survived the end of a run. All other facts about the run are in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "processes may have survived"]
pub struct Survivors {
    /// The ids of processes that did not die of SIGKILL because they are stuck inside the kernel, for example in a
    /// device driver. Empty in all other cases.
    pub pids: Vec<u32>,
}

/// An error that prevented a run from being started or recorded.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A file or directory of the run directory cannot be written.
    #[error(
        "cannot write {path}: {cause}; {}",
        advice(.cause, "choose another run directory with --out")
    )]
    RunDir {
        /// The path that could not be written.
        path: PathBuf,
        /// The error that the operating system returned for the write.
        cause: io::Error,
    },
    /// A file that the processes of a user's command have written cannot be read.
    #[error(
        "cannot read {path}: {cause}; {}",
        advice(.cause, "leave the run directory alone while its run goes on")
    )]
    Unreadable {
        /// The path that could not be read.
        path: PathBuf,
        /// The error that the operating system returned for the read.
        cause: io::Error,
    },
    /// The rank program does not start.
    #[error(
        "cannot start a rank with {program}: {cause}; {}",
        advice(.cause, "check that it exists and is executable")
    )]
    Spawn {
        /// The path or name of the rank program.
        program: PathBuf,
        /// The error that the operating system returned for the start of the program.
        cause: io::Error,
    },
    /// The user's command does not start.
    #[error(
        "cannot start {}: {cause}; {}",
        .program.display(),
        advice(.cause, "give the command exactly as you start it without zprobe: after `--` of `zprobe exec`, or as `command` of `[exec]`")
    )]
    Command {
        /// The program of the user's command.
        program: PathBuf,
        /// The error that the operating system returned for the start of the command.
        cause: io::Error,
    },
    /// The operating system refuses a resource such as a pipe, a socket or a signal handler.
    #[error(
        "cannot set up {what}: {cause}; {}",
        advice(.cause, "check the limits of this shell with `ulimit -a`")
    )]
    System {
        /// The resource that was being set up, in words.
        what: &'static str,
        /// The error that the operating system returned for the resource.
        cause: io::Error,
    },
    /// The stack limit of the shell is lower than the stack that a rank needs.
    #[error(
        "this shell gives every program a stack of {kib} KiB, and a rank needs {needed}; raise it with \
         `ulimit -s 8192`"
    )]
    Stack {
        /// The stack limit of the shell, in KiB.
        kib: u64,
        /// The stack size that a rank needs, in KiB.
        needed: u64,
    },
    /// The process of a pool has ended, or does not answer as it should.
    #[error(
        "the pool of {program} {failure}; start another pool, or run without one{}",
        last_words(.stderr)
    )]
    Pool {
        /// The program of the pool.
        program: PathBuf,
        /// The reason why the pool failed.
        failure: PoolFailure,
        /// The last lines of the standard error of the host or of the pool; `None` if both logs are empty.
        stderr: Option<String>,
    },
    /// Another agent of the job could not start its ranks.
    #[error("{machine}: {message}")]
    Agent {
        /// The name of the machine of the other agent.
        machine: String,
        /// The error message of the other agent.
        message: String,
    },
    /// The commands of two agents have both started the same rank.
    #[error(
        "the commands of processes {} and {} of this job both have a rank {rank}, so they train separately: make them \
         one job (with torchrun: --nnodes, and the same --rdzv-endpoint or --master-addr on each machine)",
        .agents[0], .agents[1]
    )]
    Apart {
        /// The rank that was started twice.
        rank: usize,
        /// The numbers of the two agents, the smaller one first.
        agents: [usize; 2],
    },
    /// The run has more ranks than a pool can fork.
    #[error(
        "{ranks} ranks are too many for a pool: the kernel hands over the channels of {most} ranks \
         at once; run without a pool"
    )]
    PoolWorld {
        /// The number of ranks of the run.
        ranks: usize,
        /// The largest number of ranks of a run that a pool can fork.
        most: usize,
    },
}

/// The reason why a pool cannot serve a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFailure {
    /// The process of the pool has exited with this code.
    #[error("has exited with code {0}")]
    Exited(i32),
    /// The process of the pool was ended by the signal with this number.
    #[error("was ended by signal {0}")]
    Killed(i32),
    /// The process of the pool did not report within this time that its engine is loaded.
    #[error("was not ready within {0:?}")]
    NotReady(Duration),
    /// The pool did not fork a host for the run.
    #[error("did not fork a host for the run")]
    NoHost,
}

/// Returns the end of an error message that quotes standard error, or an empty text if there is nothing to quote.
fn last_words(stderr: &Option<String>) -> String {
    stderr.as_ref().map_or_else(String::new, |tail| format!(". Its last stderr lines:\n{tail}"))
}

impl LaunchError {
    /// Returns a function for `map_err` that wraps an error of the operating system on reading `path`.
    fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Unreadable { path, cause }
    }

    /// Returns a function for `map_err` that wraps an error of the operating system on writing to `path`.
    fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::RunDir { path, cause }
    }

    /// Returns a function for `map_err` that wraps an error of the operating system on setting up `what`.
    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::System { what, cause: cause.into() }
    }
}

impl Launch<'_> {
    /// Performs the run until it ends, successfully or not, and leaves a trace in the run directory.
    ///
    /// `observer` sees each record when the record is written. When this function returns or unwinds, no process of
    /// the run is left, except for [`Survivors::pids`].
    ///
    /// The runs of one process take place one after the other. During a run, the first SIGINT, SIGTERM or SIGHUP ends
    /// the run and not the process; a second signal ends the process at once. The calling thread must outlive the
    /// run, because the kernel kills the ranks when the thread that started them ends.
    ///
    /// # Errors
    /// Fails if the program cannot be started, the pool does not fork a host, or the trace or the logs cannot be
    /// written.
    pub fn run(&self, observer: &mut dyn FnMut(&Record)) -> Result<Survivors, LaunchError> {
        let share = RankShare::of_all(self.spec.world_size)?;
        self.at(&share, OtherAgents::Nobody, observer)
    }

    /// Performs the run as [`Launch::run`] does, as the leader of the other agents in `team`: the trace contains the
    /// ranks of all agents. `repeat` is the number of this run among several repeats.
    ///
    /// # Errors
    /// Fails like [`Launch::run`], and if another agent cannot start its ranks.
    pub fn lead(
        &self,
        team: &mut Team,
        repeat: Option<usize>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Survivors, LaunchError> {
        let share = team.begin(self.run_id, repeat)?;
        self.at(&share, OtherAgents::Team(team), observer)
    }

    /// Performs this process's part of a run that another agent leads. The trace contains only the ranks of this
    /// process; `port` is the port of the ranks' TCPStore.
    ///
    /// # Errors
    /// Fails like [`Launch::run`].
    pub fn follow(&self, leader: &mut Leader, port: u16) -> Result<Survivors, LaunchError> {
        let share = leader.place(port)?;
        self.at(&share, OtherAgents::Leader(leader), &mut |_| {})
    }

    /// Performs the part of the run that `share` describes.
    fn at(
        &self,
        share: &RankShare,
        others: OtherAgents<'_>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Survivors, LaunchError> {
        let start = |run_dir: &Path| -> Result<Box<dyn RankProcesses>, LaunchError> {
            Ok(Box::new(LocalRanks::start(self, run_dir, share)?))
        };
        let run = RunIdentity { id: self.run_id, spec: self.spec, dir: self.run_dir };
        supervisor::run(run, start, others, observer)
    }
}

/// The identity of a run, independent of the kind of its ranks.
#[derive(Clone, Copy, Debug)]
struct RunIdentity<'a> {
    /// The id of the run, which every record carries.
    id: &'a str,
    spec: &'a RunSpec,
    /// The run directory.
    dir: &'a Path,
}

/// All inputs of a run of a user's command, whose processes join the run as its ranks.
#[derive(Clone, Copy, Debug)]
pub struct JoiningRun<'a> {
    /// The id of the run, by which processes that the run leaves are recognised.
    pub run_id: &'a str,
    /// The part of the specification that is known at the start; see [`RunSpec::is_settled`].
    pub spec: &'a RunSpec,
    /// The user's command, with its environment and directories.
    pub command: UserCommand<'a>,
    /// The directory for the trace; created if it does not exist.
    pub run_dir: &'a Path,
}

impl JoiningRun<'_> {
    /// Runs the command until it ends, as [`Launch::run`] does with ranks that zprobe starts, and leaves a trace in
    /// the run directory.
    ///
    /// # Errors
    /// Fails if the command does not start, or the trace cannot be written.
    pub fn run(&self, observer: &mut dyn FnMut(&Record)) -> Result<Survivors, LaunchError> {
        self.at(None, OtherAgents::Nobody, observer)
    }

    /// Runs the command as [`JoiningRun::run`] does, as the leader of the agents in `team`: the trace contains the ranks
    /// of all commands.
    ///
    /// # Errors
    /// Fails like [`JoiningRun::run`], and if another agent cannot start its command, or if the commands of
    /// two agents train separately.
    pub fn lead(
        &self,
        team: &mut Team,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Survivors, LaunchError> {
        team.begin_commands(self.run_id);
        self.at(Some(0), OtherAgents::Team(team), observer)
    }

    /// Runs the command as this process's part of a run that another agent leads. The trace contains only the ranks
    /// of this command.
    ///
    /// # Errors
    /// Fails like [`JoiningRun::run`].
    pub fn follow(&self, leader: &mut Leader) -> Result<Survivors, LaunchError> {
        self.at(Some(leader.own_index()), OtherAgents::Leader(leader), &mut |_| {})
    }

    /// Runs the command; `agent` is the number of this agent if the run has several agents.
    fn at(
        &self,
        agent: Option<usize>,
        others: OtherAgents<'_>,
        observer: &mut dyn FnMut(&Record),
    ) -> Result<Survivors, LaunchError> {
        let start = |_: &Path| -> Result<Box<dyn RankProcesses>, LaunchError> {
            Ok(Box::new(Joined::start(&self.command, self.run_id, agent)?))
        };
        let run = RunIdentity { id: self.run_id, spec: self.spec, dir: self.run_dir };
        supervisor::run(run, start, others, observer)
    }
}
