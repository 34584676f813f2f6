//! Workers (`zprobe pool-worker`): processes that make one run after the other. A worker is started when it is
//! needed, and again after it has died. Both ends of the conversation are in this module.
//!
//! A worker is a process of its own because the runs of a process take place one after the other. It exits when its
//! standard input ends, so also when the process that started it is gone.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::order::{Order, Ranks};
use super::queue::{NotStarted, Queue};
use super::recorded::{report, reported};
use super::repeat;
use super::runner::Runner;
use super::runs::typed;
use super::store::{claimed, run_id};
use crate::console::answer;
use crate::environment::CACHE_VARIABLE;
use zprobe_launch::{Stop, is_stopping};
use zprobe_model::spec::{Device, Engine};
use zprobe_report::Report;

/// The command that makes a process a worker.
pub const COMMAND: &str = "pool-worker";

/// A run to make: one line of a worker's standard input.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerTask {
    run_id: String,
    dir: PathBuf,
    /// The command that the user typed.
    command: String,
    order: Order,
}

/// The answer to a [`WorkerTask`]: one line of a worker's standard output. The report, if there is one, is in the run
/// directory.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerReply {
    /// The reason why there is no report; `None` if there is a report.
    error: Option<String>,
    /// True if the user has stopped the worker.
    stopped: bool,
}

/// The handle of a worker, in the process that gives the worker its runs.
pub struct Worker {
    /// The directory for the pools of the worker, each in a directory of its own.
    dir: PathBuf,
    started: usize,
    process: Option<WorkerProcess>,
    /// True if the user has stopped the process that was to make the last run.
    was_stopped: bool,
}

/// A running worker, with the pipes to it.
struct WorkerProcess {
    child: Child,
    tasks: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Worker {
    /// A worker whose pools are in `dir`. No process is started yet.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, started: 0, process: None, was_stopped: false }
    }

    /// Makes a run in `dir`, which is emptied first, and returns the report.
    pub fn report(&mut self, order: Order, dir: &Path) -> Result<Report> {
        self.was_stopped = false;
        let _ = fs::remove_dir_all(dir);
        let (dir_of_task, command) = (std::path::absolute(dir)?, typed(Some(&order.spec)));
        let task = WorkerTask { run_id: run_id(), dir: dir_of_task, command, order };
        let reply = self.ask(&task).inspect_err(|_| self.end())?;
        self.was_stopped = reply.stopped;
        if let Some(error) = reply.error {
            anyhow::bail!("{error}");
        }
        reported(dir)
    }

    /// True if the user has stopped the process that was to make the last run. A signal to the whole process group
    /// may reach that process before this one.
    pub fn was_stopped(&self) -> bool {
        self.was_stopped
    }

    fn ask(&mut self, task: &WorkerTask) -> Result<WorkerReply> {
        let process = match &mut self.process {
            Some(process) => process,
            None => {
                let dir = self.dir.join(self.started.to_string());
                self.started += 1;
                self.process.insert(start(&dir)?)
            }
        };
        writeln!(process.tasks, "{}", serde_json::to_string(task)?)
            .context("the worker did not accept the task")?;
        let mut line = String::new();
        process.replies.read_line(&mut line).context("the worker did not answer")?;
        anyhow::ensure!(!line.is_empty(), "the worker died; its last output is above");
        Ok(serde_json::from_str(&line)?)
    }

    /// Ends the worker and its pool.
    fn end(&mut self) {
        if let Some(WorkerProcess { mut child, tasks, replies }) = self.process.take() {
            drop((tasks, replies));
            let signal = child.wait().ok().and_then(|status| status.signal());
            self.was_stopped = signal.is_some_and(is_stopping);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(dir: &Path) -> Result<WorkerProcess> {
    let mut command = another_zprobe()?;
    command.arg(COMMAND).arg("--dir").arg(dir);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a worker")?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (tasks, stdout) = pipes.context("the worker has no standard streams")?;
    Ok(WorkerProcess { child, tasks, replies: BufReader::new(stdout) })
}

/// The command of another zprobe process. Only its arguments decide about a run, so the variables that the user has set
/// for zprobe are removed.
pub fn another_zprobe() -> Result<Command> {
    let own = std::env::current_exe().context("cannot find the path of zprobe's own executable")?;
    let mut command = Command::new(own);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") && name != CACHE_VARIABLE {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Does the work of a worker in this process, until standard input ends. The files of its pools are in `dir`.
pub fn serve(dir: &Path) -> Result<()> {
    // A terminal sends Ctrl-C to this process, too. Only the queue of the other process decides about the experiment.
    let stop = Stop::listen().context("cannot listen to signals")?;
    let mut bench = WorkerState { dir: dir.to_owned(), pools: 0, warm: None };
    for line in std::io::stdin().lock().lines() {
        let task: WorkerTask = serde_json::from_str(&line?)?;
        let error = bench.make(&task, &stop).err().map(|error| format!("{error:#}"));
        answer(&serde_json::to_string(&WorkerReply { error, stopped: stop.is_wanted() })?)?;
    }
    Ok(())
}

/// The state of a worker in its own process.
struct WorkerState {
    dir: PathBuf,
    pools: usize,
    /// The pool of the last warm run, with its engine, device and interpreter.
    warm: Option<((Engine, Device, PathBuf), Runner<'static>)>,
}

impl WorkerState {
    /// Makes a run and leaves its report in its directory.
    fn make(&mut self, task: &WorkerTask, stop: &Stop) -> Result<()> {
        let WorkerTask { run_id, dir, command, order } = task;
        claimed(dir, command, || {
            let mut cold;
            let runner = match &order.ranks {
                Ranks::Warm(python) => self.warm(order, python)?,
                _ => {
                    cold = Runner::new(order, dir, None)?;
                    &mut cold
                }
            };
            anyhow::ensure!(!stop.is_wanted(), NotStarted::Interrupted);
            repeat::all(runner, order, run_id, dir, &Queue::unseen()?)?;
            report(dir).map(drop)
        })
    }

    /// The pool for a run. The pool of another engine is ended first, because runs come engine by engine and will not
    /// need that pool again.
    fn warm(&mut self, order: &Order, python: &Path) -> Result<&mut Runner<'static>> {
        let wanted = (order.spec.engine(), order.spec.device, python.to_owned());
        let own = self.warm.take().filter(|(has, _)| *has == wanted);
        let own = match own {
            Some(own) => own,
            None => {
                self.pools += 1;
                (wanted, Runner::new(order, &self.dir.join(self.pools.to_string()), None)?)
            }
        };
        Ok(&mut self.warm.insert(own).1)
    }
}
