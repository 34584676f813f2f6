//! Runs over warm pools: processes of `zprobe pool-worker`, each of which makes one run after the
//! other, and is started again when it has died.

pub mod pooled;
pub mod serve;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use zprobe::environment::CACHE_VARIABLE;
use zprobe::launch::stopping_signals;
use zprobe::report::Report;
use zprobe::run_dir;
use zprobe::spec::Engine;

use self::serve::{Reply, Task};
use super::run::{REPORT_FILE, run_id};
use super::verbosity;

/// True once SIGINT, SIGTERM or SIGHUP came, unless it is ignored; a second one ends the process.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for &signal in stopping_signals() {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stopped))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stopped)))
            .context("cannot listen to signals")?;
    }
    Ok(stopped)
}

/// A line that counts runs; invisible where standard error is no terminal.
pub fn progress(total: usize) -> Result<ProgressBar> {
    let line = verbosity::bar(total as u64);
    line.set_style(ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg}")?);
    line.enable_steady_tick(Duration::from_millis(100));
    Ok(line)
}

/// A directory that is gone when this is.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it.
    pub fn new(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        run_dir::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A worker, started when it is needed and again when it has died.
pub struct Worker<'a> {
    engine: Engine,
    python: &'a Path,
    /// For its pools, each in a directory of its own.
    dir: PathBuf,
    started: usize,
    process: Option<Process>,
}

struct Process {
    child: Child,
    tasks: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl<'a> Worker<'a> {
    /// A worker for runs of one engine, whose pool is in `dir`. Nothing is started yet.
    pub fn new(engine: Engine, python: &'a Path, dir: PathBuf) -> Self {
        Self { engine, python, dir, started: 0, process: None }
    }

    /// The engine of its runs.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Makes a run in `dir`, which is emptied before; `arguments` are what follows `zprobe run`.
    pub fn report(&mut self, arguments: Vec<String>, dir: &Path, number: usize) -> Result<Report> {
        let _ = fs::remove_dir_all(dir);
        let run_id = format!("{}-{number}", run_id());
        let task = Task { run_id, dir: std::path::absolute(dir)?, arguments };
        let reply = self.ask(&task).inspect_err(|_| self.end())?;
        if let Some(error) = reply.error {
            anyhow::bail!("{error}");
        }
        let path = dir.join(REPORT_FILE);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
    }

    fn ask(&mut self, task: &Task) -> Result<Reply> {
        let process = match &mut self.process {
            Some(process) => process,
            None => {
                let dir = self.dir.join(self.started.to_string());
                self.started += 1;
                self.process.insert(start(self.engine, self.python, &dir)?)
            }
        };
        writeln!(process.tasks, "{}", serde_json::to_string(task)?)
            .context("the worker takes no task")?;
        let mut line = String::new();
        process.replies.read_line(&mut line).context("the worker does not answer")?;
        anyhow::ensure!(!line.is_empty(), "the worker died; its last words are above");
        Ok(serde_json::from_str(&line)?)
    }

    /// Ends the worker, which takes its pool with it.
    fn end(&mut self) {
        if let Some(Process { mut child, tasks, replies }) = self.process.take() {
            drop((tasks, replies));
            let _ = child.wait();
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(engine: Engine, python: &Path, dir: &Path) -> Result<Process> {
    let own = std::env::current_exe().context("cannot find the program that is running")?;
    let mut command = Command::new(&own);
    command.args(["pool-worker", "--engine", engine.name()]);
    command.arg("--python").arg(python).arg("--dir").arg(dir);
    // A run is what its arguments say, whatever the user has set for runs of his own.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") && name != CACHE_VARIABLE {
            command.env_remove(name);
        }
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", own.display()))?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (tasks, stdout) = pipes.context("a worker without standard streams")?;
    Ok(Process { child, tasks, replies: BufReader::new(stdout) })
}
