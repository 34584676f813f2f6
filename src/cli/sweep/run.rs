//! Has every configuration run by a worker, `--jobs` of them side by side.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use zprobe::environment::CACHE_VARIABLE;
use zprobe::lattice::Configuration;
use zprobe::lattice::outcome::{Ending, Outcome, Row};
use zprobe::report::Report;
use zprobe::spec::Engine;

use super::Args;
use super::plan::Plan;
use super::worker::{Reply, Task};
use crate::cli::run::{REPORT_FILE, run_id};

/// What was run.
#[derive(Debug, Default)]
pub struct Done {
    /// Versions of what ran.
    pub versions: Versions,
    /// In the order of the plan.
    pub rows: Vec<Row>,
}

type Versions = BTreeMap<String, String>;

/// Runs the plan's configurations. Those that were not started, because time was up or the user
/// wanted it to end, have no row.
pub fn run_all(plan: &Plan, args: &Args, python: &Path, scratch: &Path) -> Result<Done> {
    let stopped = stop_on_signals()?;
    let line = progress(plan.chosen.len())?;
    let start = Instant::now();
    let limit = args.time_limit.map(Duration::from_secs);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = |job: usize| {
        let mut worker =
            Worker { args, python, dir: scratch.join(format!("pool-{job}")), process: None };
        while !stopped.load(Ordering::Relaxed) && limit.is_none_or(|it| start.elapsed() < it) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(configuration) = plan.chosen.get(at) else { return };
            line.set_message(configuration.label());
            let dir = args.keep.as_deref().unwrap_or(scratch).join(file_name(configuration));
            let (row, versions) = worker.try_one(configuration, dir, at);
            line.inc(1);
            if row.outcome.ending != Ending::Clean {
                let words = [&row.label, row.outcome.words().as_str()].join(": ");
                let own = row.outcome.own_words().unwrap_or_default();
                line.suspend(|| anstream::eprintln!("{words} {own}"));
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, row, versions));
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        for job in 0..args.jobs.min(plan.chosen.len()) {
            scope.spawn(move || work(job));
        }
    });
    line.finish_and_clear();
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, ..)| *at);
    let mut done = Done::default();
    for (_, row, versions) in results {
        done.rows.push(row);
        done.versions.extend(versions);
    }
    Ok(done)
}

/// True once SIGINT, SIGTERM or SIGHUP came; a second one ends the process.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stopped))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stopped)))
            .context("cannot listen to signals")?;
    }
    Ok(stopped)
}

fn progress(total: usize) -> Result<ProgressBar> {
    let line = ProgressBar::new(total as u64);
    line.set_style(ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg}")?);
    line.enable_steady_tick(Duration::from_millis(100));
    Ok(line)
}

/// A name for the directory of its run: the words behind the engine's name.
fn file_name(configuration: &Configuration) -> String {
    let words = configuration.arguments()[2..].join(" ");
    words.replace("--", "").replace([' ', '/'], "-")
}

/// A worker, started when it is needed and again when it has died.
struct Worker<'a> {
    args: &'a Args,
    python: &'a Path,
    /// For its pool.
    dir: PathBuf,
    process: Option<Process>,
}

struct Process {
    child: Child,
    tasks: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Worker<'_> {
    /// Whatever keeps a configuration from running is its outcome, and not an error.
    fn try_one(
        &mut self,
        configuration: &Configuration,
        dir: PathBuf,
        number: usize,
    ) -> (Row, Versions) {
        let start = Instant::now();
        let (mut outcome, versions) = self.outcome(configuration, &dir, number);
        if self.args.confirm && outcome.ending != Ending::Clean {
            let second = dir.with_extension("again");
            outcome.confirm(&self.outcome(configuration, &second, number).0);
            let _ = fs::remove_dir_all(&second);
        }
        let kept = self.args.keep.is_some() && outcome.ending != Ending::Clean;
        if !kept {
            let _ = fs::remove_dir_all(&dir);
        }
        let row = Row {
            label: configuration.label(),
            command: configuration.command(),
            configuration: configuration.clone(),
            outcome,
            seconds: start.elapsed().as_secs_f64(),
            run_dir: kept.then_some(dir),
        };
        (row, versions)
    }

    fn outcome(&mut self, it: &Configuration, dir: &Path, number: usize) -> (Outcome, Versions) {
        match self.report(it, dir, number) {
            Ok(report) => (Outcome::of(&report), report.run.versions),
            Err(error) => (Outcome::not_run(&format!("{error:#}")), Versions::new()),
        }
    }

    fn report(&mut self, configuration: &Configuration, dir: &Path, at: usize) -> Result<Report> {
        // What an earlier sweep has kept there.
        let _ = fs::remove_dir_all(dir);
        let mut arguments = configuration.arguments();
        arguments.extend(["--steps".to_owned(), self.args.steps.to_string()]);
        arguments.extend(["--timeout".to_owned(), self.args.timeout.to_string()]);
        let run_id = format!("{}-{at}", run_id());
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
            None => self.process.insert(start(self.args.engine, self.python, &self.dir)?),
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
    command.args(["sweep-worker", "--engine", engine.name()]);
    command.arg("--python").arg(python).arg("--dir").arg(dir);
    // A row is what it says, whatever the user has set for runs of his own.
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
