//! Makes the runs: each a `zprobe run` of its own, judged by the report that it leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{MultiProgress, ProgressBar};
use zprobe::environment::CACHE_VARIABLE;
use zprobe::report::Report;
use zprobe::run_dir;

use super::environments::{Environments, say};
use super::rows::Case;
use crate::cli::limits::{CANNOT_RUN, Limits};
use crate::cli::{run, verbosity};

/// How a case ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the run said, or why there was none.
    pub got: String,
    /// Whether that was expected.
    pub ok: bool,
    /// Why it cannot be run here, if that is so: then there is nothing to expect.
    pub skipped: Option<String>,
    /// Where it is recorded, if it was started.
    pub dir: Option<PathBuf>,
}

impl Outcome {
    /// There was no run, though there could be one.
    fn without_run(got: String) -> Self {
        Self { got, ok: false, skipped: None, dir: None }
    }

    /// It cannot be run on this machine.
    fn skipped(reason: String) -> Self {
        Self { got: "skipped".to_owned(), ok: false, skipped: Some(reason), dir: None }
    }

    /// In a word, whether it is as it should be.
    pub fn word(&self) -> &'static str {
        match (&self.skipped, self.ok) {
            (Some(_), _) => "skipped",
            (None, true) => "yes",
            (None, false) => "NO",
        }
    }

    /// Whether it is not as it should be.
    pub fn is_bad(&self) -> bool {
        !self.ok && self.skipped.is_none()
    }
}

/// Runs all cases, `--jobs` at a time, and returns their outcomes in the same order.
pub fn run_all(
    cases: &[Case<'_>],
    environments: &Environments<'_>,
    out: &Path,
    args: &super::Args,
    progress: &MultiProgress,
) -> Result<Vec<Outcome>> {
    let own = std::env::current_exe().context("cannot find the program that is running")?;
    let line = progress.add(ProgressBar::new_spinner());
    line.enable_steady_tick(Duration::from_millis(100));
    let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let outcomes = Mutex::new(vec![None; cases.len()]);
    let limits = Limits::default();
    let work = || {
        while !stopped.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(at) else { return };
            let label = format!("{} on {}", case.row.name, case.release.label());
            say(progress, &line, &format!("[{}/{}] {label}", at + 1, cases.len()));
            let outcome = run_one(case, environments, &limits, &own, out);
            // What is known stays known, even if the user stops here.
            let said = match &outcome.skipped {
                Some(reason) => format!("skipped: {CANNOT_RUN}: {reason}"),
                None if outcome.ok => format!("{}, as expected", outcome.got),
                None => format!("{}, NOT as expected", outcome.got),
            };
            progress.suspend(|| verbosity::say(format_args!("{label}: {said}")));
            if args.fail_fast && outcome.is_bad() {
                stopped.store(true, Ordering::Relaxed);
            }
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes[at] = Some(outcome);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.min(cases.len()) {
            scope.spawn(work);
        }
    });
    line.finish_and_clear();
    let outcomes = outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let not_tried = || Outcome::without_run("not tried".to_owned());
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(not_tried)).collect())
}

/// Runs a case. Whatever keeps it from running is its outcome, and not an error.
fn run_one(
    case: &Case<'_>,
    environments: &Environments<'_>,
    limits: &Limits,
    own: &Path,
    out: &Path,
) -> Outcome {
    let python = match environments.get(&case.release.packages) {
        None => None,
        Some(Ok(python)) => Some(python),
        Some(Err(error)) => {
            let first = error.lines().next().unwrap_or_default();
            return Outcome::without_run(format!("no environment: {first}"));
        }
    };
    let arguments: Vec<&str> = case.row.arguments(case.release).collect();
    let spec = run::Args::parse(&arguments).ok().and_then(|args| args.spec(None).ok());
    let refusal = python.zip(spec).and_then(|(python, spec)| limits.refusal(&spec, python));
    if let Some(reason) = refusal {
        return Outcome::skipped(reason);
    }
    let dir = out.join(&case.row.name).join(case.file_name());
    let (got, ok) = match child(case, python, own, &dir) {
        Ok(report) => {
            let judgement = case.row.judge(case.release, &report);
            if let Some(reason) = report.limit().filter(|_| !judgement.ok) {
                return Outcome { dir: Some(dir), ..Outcome::skipped(reason) };
            }
            (judgement.got, judgement.ok)
        }
        Err(error) => (format!("did not run: {error:#}"), false),
    };
    Outcome { got, ok, skipped: None, dir: Some(dir) }
}

/// Starts `zprobe run` and reads its report.
fn child(case: &Case<'_>, python: Option<&PathBuf>, own: &Path, dir: &Path) -> Result<Report> {
    // Beside it: a run directory is the run's alone.
    let log = |stream: &str| {
        let mut path = dir.as_os_str().to_owned();
        path.push(format!(".{stream}.log"));
        PathBuf::from(path)
    };
    let file = |stream: &str| {
        let path = log(stream);
        run_dir::create(&path).with_context(|| format!("cannot write {}", path.display()))
    };
    let parent = dir.parent().unwrap_or(dir);
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let mut command = Command::new(own);
    command.args(["run", "--no-config", "--out"]).arg(dir);
    if let Some(python) = python {
        command.arg("--python").arg(python);
    }
    command.args(case.row.arguments(case.release));
    // A row is run as it is written, whatever the user has set for runs of his own.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZPROBE_") && name != CACHE_VARIABLE {
            command.env_remove(name);
        }
    }
    let status = command
        .stdin(Stdio::null())
        .stdout(file("stdout")?)
        .stderr(file("stderr")?)
        .status()
        .with_context(|| format!("cannot start {}", own.display()))?;
    let path = dir.join("report.json");
    let Ok(text) = fs::read_to_string(&path) else {
        let stderr = fs::read(log("stderr")).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        let words = stderr.lines().find(|line| line.starts_with("error:")).unwrap_or("no report");
        anyhow::bail!("{words} ({status})");
    };
    serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
}
