//! The programs whose times are compared.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::scratch::Scratch;

/// The number of ranks of a contender, unless its constructor takes another one.
pub const RANKS: usize = 2;

/// The path of the program with the floors, from the directory of release builds.
const FLOOR: &str = "examples/floor";

/// The name of the table row that the benchmark is about.
pub const RUN: &str = "`zprobe run --stage 1 --ga 4`";

/// The file with the standard error of the last program.
const STDERR: &str = "stderr.log";

/// The file with the standard output of the last program, where the output is needed.
const STDOUT: &str = "stdout.log";

/// A function that prepares the processes of one run.
type Prepare = Box<dyn Fn(&Scratch) -> Result<Vec<Command>>>;

/// A program, or a few programs that are started together, and the number of times that they are timed.
pub struct Contender {
    /// The name of the contender's row in the table.
    pub name: String,
    /// The number of timed runs.
    pub runs: usize,
    /// The number of the contender's processes that are ranks of `zprobe-rank`.
    pub native_ranks: usize,
    /// Text on the standard output of a successful run; `None` if the exit status tells success.
    pub proof: Option<&'static str>,
    prepare: Prepare,
}

impl Contender {
    /// A contender that consists of one process.
    pub fn new(
        name: impl Into<String>,
        runs: usize,
        prepare: impl Fn(&Scratch) -> Result<Command> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            runs,
            native_ranks: 0,
            proof: None,
            prepare: Box::new(move |scratch| Ok(vec![prepare(scratch)?])),
        }
    }

    /// `zprobe run` as a user starts it, including diagnosis and report.
    pub fn run(release: &Path, ranks: usize, runs: usize) -> Self {
        let zprobe = release.join("zprobe");
        let run = Self::new(RUN, runs, move |scratch| {
            let mut command = Command::new(&zprobe);
            command.args(["run", "--stage", "1", "--ga", "4", "--nproc-per-node"]);
            command.arg(ranks.to_string()).arg("--out").arg(scratch.empty("run")?);
            Ok(command)
        });
        Self { native_ranks: ranks, ..run }
    }

    /// The launcher without a run: `zprobe --version`.
    pub fn version(release: &Path, runs: usize) -> Self {
        let zprobe = release.join("zprobe");
        Self::new("`zprobe --version`", runs, move |_| {
            let mut command = Command::new(&zprobe);
            command.arg("--version");
            Ok(command)
        })
    }

    /// The floor whose ranks are forked from one process that has loaded libtorch.
    pub fn fork_floor(release: &Path, ranks: usize, runs: usize) -> Self {
        let program = release.join(FLOOR);
        let floor = Self::new("floor: ranks forked", runs, move |_| {
            let mut command = Command::new(&program);
            command.args(["fork", &ranks.to_string()]).env("OMP_NUM_THREADS", "1");
            Ok(command)
        });
        Self { native_ranks: ranks, ..floor }
    }

    /// The floor whose ranks load libtorch separately.
    pub fn exec_floor(release: &Path, runs: usize) -> Self {
        let program = release.join(FLOOR);
        Self {
            name: "floor: ranks started separately".into(),
            runs,
            native_ranks: RANKS,
            proof: None,
            prepare: Box::new(move |_| {
                // The socket listens before the ranks start, so that no rank has to retry.
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let port = listener.local_addr()?.port().to_string();
                let mut listener = Some(OwnedFd::from(listener));
                let rank = |rank: usize| {
                    let mut command = Command::new(&program);
                    command.args(["rank", &RANKS.to_string(), &rank.to_string(), &port]);
                    command.env("OMP_NUM_THREADS", "1");
                    // The first rank inherits the socket.
                    command.stdin(listener.take().map_or_else(Stdio::null, Stdio::from));
                    command
                };
                Ok((0..RANKS).map(rank).collect())
            }),
        }
    }

    /// Starts the processes of the contender; their output goes to files of `scratch` or nowhere.
    pub fn start(&self, scratch: &Scratch) -> Result<Running> {
        let mut commands = (self.prepare)(scratch)?;
        for command in &mut commands {
            command.current_dir(scratch.dir()).stderr(scratch.create(STDERR)?);
            command.stdout(match self.proof {
                Some(_) => scratch.create(STDOUT)?.into(),
                None => Stdio::null(),
            });
            for (name, _) in std::env::vars_os() {
                // The user's settings of zprobe must not change the measurement.
                if name.to_string_lossy().starts_with("ZPROBE_") {
                    command.env_remove(name);
                }
            }
        }
        let started = Instant::now();
        let children = commands
            .iter_mut()
            .map(|command| command.spawn().with_context(|| format!("cannot start {command:?}")))
            .collect::<Result<_>>()?;
        Ok(Running { started, children })
    }

    /// Times one run from its start to its end.
    pub fn time(&self, scratch: &Scratch) -> Result<Duration> {
        let (time, ended) = self.start(scratch)?.finish()?;
        let success = match self.proof {
            Some(proof) => scratch.read(STDOUT)?.contains(proof),
            None => ended.iter().all(ExitStatus::success),
        };
        if !success {
            let log = scratch.dir().join(STDERR);
            bail!("{} failed ({}); see {}", self.name, statuses(&ended), log.display());
        }
        Ok(time)
    }
}

/// A contender whose processes are running.
pub struct Running {
    started: Instant,
    children: Vec<Child>,
}

impl Running {
    /// The ids of the processes that were started.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    /// Returns true if a process has ended; never waits.
    pub fn has_ended(&mut self) -> Result<bool> {
        for child in &mut self.children {
            if child.try_wait()?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for all processes, and returns the time since the start and their exit statuses.
    pub fn finish(mut self) -> Result<(Duration, Vec<ExitStatus>)> {
        let ended = self.children.iter_mut().map(Child::wait).collect::<Result<_, _>>()?;
        Ok((self.started.elapsed(), ended))
    }
}

/// The exit statuses of processes, in words.
fn statuses(ended: &[ExitStatus]) -> String {
    ended.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
