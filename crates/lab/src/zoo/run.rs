//! The runs of the zoo, each judged by its report, and their outcomes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::environments::Environments;
use super::rows::ZooCase;
use crate::limits::{CANNOT_RUN, Limits};
use crate::order::ParseOrder;
use crate::queue::{NotStarted, Queue};
use crate::recorded::{own_words, reported};
use crate::script::{ScriptRun, programs_of};
use crate::worker::Worker;
use zprobe_report::{Ending, Report, Verdict};
use zprobe_zoo::BugScript;

/// The outcome of a case.
#[derive(Clone, Debug)]
pub struct ZooOutcome {
    /// The result of the run, or the reason why there was no run.
    pub got: String,
    /// True if the result is the expected one.
    pub ok: bool,
    /// The reason why this machine cannot run the case; `None` if it can. A skipped case has no expected result.
    pub skipped: Option<String>,
    /// The reason why the case was not started although it could be run; `None` otherwise.
    pub not_tried: Option<NotStarted>,
    /// True if the user has interrupted the run, or the queue before the run was started.
    pub interrupted: bool,
    /// The directory in which the run is recorded; `None` if the run was not started.
    pub dir: Option<PathBuf>,
}

impl ZooOutcome {
    /// The outcome of a case that could be run, but has no run.
    fn without_run(got: String) -> Self {
        Self { got, ok: false, skipped: None, not_tried: None, interrupted: false, dir: None }
    }

    /// The outcome of a case that this machine cannot run.
    fn skipped(reason: String) -> Self {
        Self { skipped: Some(reason), ..Self::without_run("skipped".to_owned()) }
    }

    /// The outcome of a case that was not started before the queue was over.
    fn not_tried(reason: NotStarted) -> Self {
        let interrupted = reason == NotStarted::Interrupted;
        let outcome = Self::without_run("not tried".to_owned());
        Self { not_tried: Some(reason), interrupted, ..outcome }
    }

    /// The word for the outcome in the table: `yes` if it is as expected, `NO` if not, `skipped`, or `-` without a
    /// result.
    pub fn word(&self) -> &'static str {
        if self.skipped.is_some() {
            "skipped"
        } else if self.ok {
            "yes"
        } else if self.interrupted || self.not_tried.is_some() {
            "-"
        } else {
            "NO"
        }
    }

    /// The verdict on an experiment that has only this outcome.
    pub fn verdict(&self) -> Verdict {
        if self.ok || self.skipped.is_some() {
            Verdict::Clean
        } else if self.interrupted {
            Verdict::Inconclusive
        } else {
            Verdict::Findings
        }
    }

    /// The outcome in words, which is printed at once because all cases together may take hours.
    fn words(&self) -> String {
        match &self.skipped {
            Some(reason) => format!("skipped: {CANNOT_RUN}: {reason}"),
            None if self.interrupted => self.got.clone(),
            None if self.ok => format!("{}, as expected", self.got),
            None => format!("{}, NOT as expected", self.got),
        }
    }
}

/// The options for the runs of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct ZooOptions {
    /// The number of runs that are made side by side.
    pub jobs: usize,
    /// True if nothing is started after the first unexpected result.
    pub fail_fast: bool,
}

impl ZooOptions {
    /// Runs all cases, and returns their outcomes in the same order.
    pub(super) fn all(
        self,
        cases: &[ZooCase<'_>],
        environments: &Environments<'_>,
        out: &Path,
        read: &ParseOrder<'_>,
    ) -> Result<Vec<ZooOutcome>> {
        let queue = Queue::new(cases.len())?.fail_fast(self.fail_fast).announcing();
        let limits = Limits::default();
        let label = |case: &ZooCase<'_>| format!("{} on {}", case.row.name, case.release.label());
        let outcomes = queue.all(
            cases,
            (self.jobs, |number| Worker::new(out.join(format!("worker-{number}")))),
            |_, case| label(case),
            |worker, case| {
                let outcome = run(case, environments, (&limits, read), (worker, &queue), out);
                let is_stopped = queue.is_interrupted(worker.was_stopped());
                let outcome = outcome.or_else(|error| match is_stopped {
                    true => Err(NotStarted::Interrupted),
                    false => Ok(ZooOutcome {
                        dir: Some(place(case, out)).filter(|dir| dir.exists()),
                        ..ZooOutcome::without_run(error)
                    }),
                })?;
                queue.say(format_args!("{}: {}", label(case), outcome.words()));
                if outcome.verdict() == Verdict::Findings {
                    queue.fail();
                }
                Ok(outcome)
            },
        );
        Ok(outcomes.into_iter().map(|it| it.unwrap_or_else(ZooOutcome::not_tried)).collect())
    }
}

/// Runs a script under `zprobe exec` and returns the report.
fn of_script(script: &BugScript, python: &Path, dir: &Path, queue: &Queue) -> Result<Report> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let scripts = dir.with_file_name(format!("{name}-scripts"));
    script.write(&scripts).with_context(|| format!("cannot write {}", scripts.display()))?;
    let command = ["--".to_owned(), python.display().to_string()].into_iter();
    let command = command.chain(script.command());
    let arguments: Vec<String> = script.exec_options().into_iter().chain(command).collect();
    // Programs that the interpreter's packages start are in the interpreter's directory.
    let programs = programs_of(python);
    let run = ScriptRun {
        arguments: &arguments,
        programs: programs.as_deref(),
        working_dir: Some(&scripts),
        variables: &[("OMP_NUM_THREADS", "1")],
    };
    let ended = run.run(dir, queue)?;
    reported(dir).with_context(|| ended.last_line().to_owned())
}

/// The directory of a case's run.
fn place(case: &ZooCase<'_>, out: &Path) -> PathBuf {
    out.join(&case.row.name).join(case.file_name())
}

/// Runs a case and judges its report.
///
/// # Errors
/// The reason why there was no run, in the words of the table.
fn run(
    case: &ZooCase<'_>,
    environments: &Environments<'_>,
    (limits, read): (&Limits, &ParseOrder<'_>),
    (worker, queue): (&mut Worker, &Queue),
    out: &Path,
) -> Result<ZooOutcome, String> {
    let python = match environments.get(&case.release.packages) {
        None => None,
        Some(Ok(python)) => Some(python),
        Some(Err(error)) => {
            let first = error.lines().next().unwrap_or_default();
            return Err(format!("no environment: {first}"));
        }
    };
    let did_not_run = |error: anyhow::Error| format!("did not run: {error:#}");
    let dir = place(case, out);
    let report = if let (Some(script), Some(python)) = (&case.row.script, python) {
        of_script(script, python, &dir, queue)
    } else {
        let arguments = case.row.arguments(case.release).map(str::to_owned);
        let own = python.map(|it| ["--python".to_owned(), it.display().to_string()]);
        let arguments: Vec<String> = arguments.chain(own.into_iter().flatten()).collect();
        let order = read(&arguments).map_err(did_not_run)?;
        if let Some(reason) = python.and_then(|python| limits.refusal(&order.spec, python)) {
            return Ok(ZooOutcome::skipped(reason));
        }
        worker.report(order, &dir)
    };
    let report = report.map_err(did_not_run)?;
    let said = own_words(&dir, &report).map_err(did_not_run)?;
    let judgement = case.row.judge(case.release, &report, &said);
    let outcome = match report.limit().filter(|_| !judgement.ok) {
        Some(reason) => ZooOutcome::skipped(reason),
        None if report.run.ending == Ending::Interrupted => {
            let outcome = ZooOutcome::without_run("interrupted".to_owned());
            ZooOutcome { interrupted: true, ..outcome }
        }
        None => ZooOutcome { ok: judgement.ok, ..ZooOutcome::without_run(judgement.got) },
    };
    Ok(ZooOutcome { dir: Some(dir), ..outcome })
}
