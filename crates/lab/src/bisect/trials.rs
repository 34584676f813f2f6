//! Trials of a bisection: an environment with a release or a commit, and a run in the environment.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use pep440_rs::Version;

use super::BisectTask;
use crate::environment::{Cache, CommitCheckout, Installer, ProvisionError};
use crate::order::{Order, Ranks};
use crate::queue::{NotStarted, Queue};
use crate::worker::Worker;
use zprobe_report::Report;
use zprobe_zoo::Packages;

/// The shared state of all trials of a search: environments, installer and queue.
pub struct BisectRunner<'a> {
    /// The task of the search.
    pub task: &'a BisectTask,
    /// The cache of environments.
    pub cache: Cache,
    /// The tool that makes environments.
    pub installer: Installer,
    /// The directory for the runs.
    pub out: PathBuf,
    /// The queue that decides when no more trials are started.
    pub queue: Queue,
    /// The trials under way by their labels, each with its phase.
    phases: Mutex<BTreeMap<String, &'static str>>,
}

/// A finished trial.
pub struct FinishedTrial {
    /// The report on the run, or the reason why there is no report.
    pub report: Result<Report>,
    /// The time that it took to make the environment; `None` if the environment existed already.
    making: Option<Duration>,
    /// The time that the run took.
    running: Duration,
}

/// The phase of a trial in which its environment is made.
const MAKING: &str = "making an environment";

impl<'a> BisectRunner<'a> {
    /// Trials whose runs are recorded below `out`.
    pub fn new(task: &'a BisectTask, installer: Installer, out: PathBuf) -> Result<Self> {
        let (cache, queue) = (Cache::locate()?, Queue::uncounted()?);
        Ok(Self { task, cache, installer, out, queue, phases: Mutex::default() })
    }

    /// Tries these releases, side by side.
    pub fn releases(&self, chosen: &[&Version]) -> Vec<Result<FinishedTrial, NotStarted>> {
        // Each round has its own workers, because their directories must be new.
        let round = chosen.first().map(ToString::to_string).unwrap_or_default();
        let label = |version: &&Version| format!("{} {version}", self.task.package);
        self.queue.all(
            chosen,
            (self.task.jobs, |number| self.worker(&format!("{round}-{number}"))),
            |_, version| label(version),
            |worker, version| {
                let packages = self.packages(version);
                self.trial(worker, &label(version), &version.to_string(), |progress| {
                    self.cache.provide(&packages, &self.installer, progress)
                })
            },
        )
    }

    /// Tries a commit that is checked out, over the environment of a release.
    pub fn commit(
        &self,
        worker: &mut Worker,
        commit: CommitCheckout<'_>,
        label: &str,
        release: &Packages,
    ) -> Result<FinishedTrial, NotStarted> {
        self.queue
            .job(label, || {
                self.trial(worker, label, commit.id, |progress| {
                    self.cache.provide_commit(commit, release, &self.installer, progress)
                })
            })
            .flatten()
    }

    /// A worker for runs, with a directory of this name.
    pub fn worker(&self, name: &str) -> Worker {
        Worker::new(self.out.join(format!("worker-{name}")))
    }

    /// The packages of a release's environment.
    pub fn packages(&self, release: &Version) -> Packages {
        let BisectTask { package, fixed_packages, .. } = self.task;
        let own = [(package.clone(), release.clone())];
        let fixed_packages =
            fixed_packages.iter().map(|(name, version)| (name.to_owned(), version.clone()));
        fixed_packages.chain(own).collect()
    }

    /// Makes an environment, and a run in it that is recorded in the directory `name`.
    fn trial(
        &self,
        worker: &mut Worker,
        label: &str,
        name: &str,
        provide: impl FnOnce(&mut dyn FnMut(&str)) -> Result<PathBuf, ProvisionError>,
    ) -> Result<FinishedTrial, NotStarted> {
        let (began, mut is_made) = (Instant::now(), false);
        let python = provide(&mut |step| {
            is_made = true;
            self.phase(label, MAKING, step);
        });
        let making = is_made.then(|| began.elapsed());
        let began = Instant::now();
        let report = python.map_err(|error| anyhow!("no environment: {}", brief(&error))).and_then(
            |python| {
                self.phase(label, "running", "");
                self.report(worker, &python, &self.out.join(name))
            },
        );
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).remove(label);
        if self.queue.is_interrupted(worker.was_stopped()) && report.is_err() {
            return Err(NotStarted::Interrupted);
        }
        Ok(FinishedTrial { report, making, running: began.elapsed() })
    }

    fn report(&self, worker: &mut Worker, python: &Path, out: &Path) -> Result<Report> {
        let ranks = Ranks::Warm(python.to_owned());
        worker.report(Order { ranks, ..self.task.order.clone() }, out)
    }

    /// Shows the phase of a trial and its current step on a terminal, next to the phases of the other trials. A log
    /// gets one line for each phase.
    fn phase(&self, label: &str, phase: &'static str, step: &str) {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = phases.insert(label.to_owned(), phase);
        if self.queue.is_hidden() {
            if earlier != Some(phase) {
                self.queue.say(format_args!("{label}: {phase}"));
            }
            return;
        }
        let mut text = String::new();
        for (other, phase) in phases.iter().filter(|(other, _)| *other != label) {
            let _ = write!(text, "{other}: {phase}; ");
        }
        let step = if step.is_empty() { String::new() } else { format!(": {step}") };
        self.queue.begin(&format!("{text}{label}: {phase}{step}"));
    }

    /// Prints the result of a trial, and the approximate number of trials to follow if that is known.
    pub fn say(
        &self,
        label: &str,
        verdict: &str,
        (making, running): (Option<Duration>, Duration),
        left: Option<usize>,
    ) {
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64().round());
        let made = making.map(|it| format!("environment {}, ", seconds(it))).unwrap_or_default();
        let left = match left {
            None => String::new(),
            Some(0) => "; that was the last".to_owned(),
            Some(left) => format!("; about {left} more"),
        };
        self.queue.say(format_args!("{label}: {verdict} ({made}run {}){left}", seconds(running)));
    }
}

impl FinishedTrial {
    /// A trial in which no run was made.
    pub fn without_run(reason: anyhow::Error) -> Self {
        Self { report: Err(reason), making: None, running: Duration::ZERO }
    }

    /// The time that it took to make the environment, if it had to be made, and the time that the run took.
    pub fn times(&self) -> (Option<Duration>, Duration) {
        (self.making, self.running)
    }
}

/// The reason why there is no environment, in one line: for a tool that failed, the last line of its output.
fn brief(error: &ProvisionError) -> String {
    let text = match error {
        ProvisionError::Failed(failure) => {
            let mut lines = failure.tail.lines().map(str::trim);
            lines.rfind(|line| !line.starts_with("hint:")).unwrap_or_default().to_owned()
        }
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::ToolFailure;

    #[test]
    fn the_reason_for_no_environment_is_the_last_thing_that_the_tool_said() {
        let failure = ToolFailure {
            packages: "deepspeed 1393f75dca8c".to_owned(),
            step: "importing deepspeed".to_owned(),
            status: "exit status: 1".to_owned(),
            tail: "    Traceback\n    ImportError: no ops\n    hint: look".to_owned(),
            advice: "",
            log: PathBuf::new(),
        };
        let error = ProvisionError::Failed(Box::new(failure));
        assert_eq!(brief(&error), "ImportError: no ops");
        let error = ProvisionError::NoPython { versions: "3.11".to_owned() };
        assert!(brief(&error).starts_with("no Python 3.11 on PATH"), "{}", brief(&error));
    }
}
