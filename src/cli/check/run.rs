//! Has every case run by a worker, `--jobs` of them side by side.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use zprobe::report::suite::{Case, Status, findings};
use zprobe::report::{Finding, Report};

use super::Args;
use super::accept::Accepted;
use super::engines::Absent;
use super::select::Task;
use crate::cli::console;
use crate::cli::limits::CANNOT_RUN;
use crate::cli::store;
use crate::cli::verbosity::{self, Verbosity};
use crate::cli::workers::{Scratch, Worker, progress, stop_on_signals};

/// Runs all cases that can be run here, and says of the others why they were not run.
pub fn run_all(
    tasks: &[Task<'_>],
    absent: &Absent,
    args: &Args,
    (python, accepted): (&Path, &Accepted),
    out: &Path,
) -> Result<Vec<Case>> {
    let scratch = Scratch::new(&store::place("pools")?)?;
    let (interrupted, failed) = (stop_on_signals()?, AtomicBool::new(false));
    let line = progress(tasks.len())?;
    let next = AtomicUsize::new(0);
    let cases = Mutex::new(vec![None; tasks.len()]);
    let work = |job: usize| {
        let mut worker: Option<Worker<'_>> = None;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(at) else { return };
            console::message(&line, &task.id());
            let mut case = if let Some(reason) = absent.reason(task) {
                not_started(task, args, Status::Skipped, &reason)
            } else if interrupted.load(Ordering::Relaxed) {
                not_started(task, args, Status::Inconclusive, "interrupted before it was started")
            } else if args.fail_fast && failed.load(Ordering::Relaxed) {
                not_started(
                    task,
                    args,
                    Status::Skipped,
                    "not started after a failure (--fail-fast)",
                )
            } else {
                // Tasks come engine by engine: the pool of another one is not needed again.
                let own = worker.take().filter(|worker| worker.engine() == task.engine);
                let dir = || scratch.path().join(format!("{}-{job}", task.engine));
                let own = own.unwrap_or_else(|| Worker::new(task.engine, python, dir()));
                run_one(task, args, worker.insert(own), out, at)
            };
            line.inc(1);
            accepted.mark(&mut case);
            if case.status.is_bad() {
                failed.store(true, Ordering::Relaxed);
            }
            line.suspend(|| tell(&accepted.in_the_end(&case)));
            cases.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(case);
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        for job in 0..args.jobs.min(tasks.len()) {
            scope.spawn(move || work(job));
        }
    });
    line.finish_and_clear();
    let cases = cases.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(cases.into_iter().flatten().collect())
}

/// Says what came of a case: at once if it is not well, for people who may wait for minutes.
fn tell(case: &Case) {
    if case.status.is_bad() {
        let complaint = case.complaint();
        let words = complaint.lines().next().unwrap_or_default();
        verbosity::say(format_args!("{}: {}: {words}", case.status, case.id()));
    } else if case.status == Status::Accepted {
        let accepted = case.findings.iter().filter_map(|it| {
            let why = it.accepted.as_ref()?;
            Some(format!("{} until {}: {}", it.finding.code, why.expires, why.reason))
        });
        let words = accepted.collect::<Vec<_>>().join("; ");
        verbosity::say(format_args!("{}: {}: {words}", case.status, case.id()));
    } else if Verbosity::get().verbose {
        verbosity::say(format_args!("{}: {}", case.status, case.id()));
    }
}

/// Runs a case. Whatever keeps it from running is its outcome, and not an error.
fn run_one(task: &Task<'_>, args: &Args, worker: &mut Worker<'_>, out: &Path, at: usize) -> Case {
    let start = Instant::now();
    let dir = out.join(task.engine.name()).join(&task.chosen.probe.name);
    let mut arguments = task.arguments();
    arguments.extend(args.timeout.arguments());
    let mut case = match worker.report(arguments, &dir, at) {
        Ok(report) => judged(task, args, &report),
        Err(error) => not_started(task, args, Status::NotRun, &format!("{error:#}")),
    };
    case.seconds = start.elapsed().as_secs_f64();
    if case.status.is_bad() && dir.exists() {
        case.run_dir = Some(dir);
    } else {
        // That of the engine goes with it when it is empty.
        let _ = fs::remove_dir_all(&dir);
        let _ = dir.ancestors().skip(1).take(1).try_for_each(fs::remove_dir);
    }
    case
}

fn judged(task: &Task<'_>, args: &Args, report: &Report) -> Case {
    let judgement = task.chosen.probe.expect.judge(report);
    let versions = report.run.versions.clone();
    // What the engine refuses here is no answer about it.
    if let Some(reason) = report.limit().filter(|_| !judgement.ok) {
        let reason = format!("{CANNOT_RUN}: {reason}");
        return Case { versions, ..not_started(task, args, Status::Skipped, &reason) };
    }
    let (limits, others): (Vec<&Finding>, Vec<&Finding>) =
        report.findings.iter().partition(|finding| finding.limit.is_some());
    let status = match Status::of(report.verdict) {
        _ if judgement.ok => Status::Passed,
        // Clean, where something else was expected; or found before this machine's limit was met.
        Status::Passed => Status::Failed,
        Status::Crashed if !limits.is_empty() => Status::Failed,
        status => status,
    };
    let names = others.iter().map(|finding| format!("{} {}", finding.code, finding.name));
    let got = if limits.is_empty() { judgement.got } else { names.collect::<Vec<_>>().join(", ") };
    Case { got, findings: findings(report), versions, ..blank(task, args, status) }
}

fn not_started(task: &Task<'_>, args: &Args, status: Status, reason: &str) -> Case {
    let case = blank(task, args, status);
    Case { got: "no run".to_owned(), reason: Some(reason.to_owned()), ..case }
}

fn blank(task: &Task<'_>, args: &Args, status: Status) -> Case {
    let probe = &task.chosen.probe;
    Case {
        probe: probe.name.clone(),
        engine: task.engine,
        description: probe.description.clone(),
        file: task.chosen.file.clone(),
        command: task.command(args.python.named().as_deref()),
        expected: probe.expect.to_string(),
        got: String::new(),
        status,
        reason: None,
        findings: vec![],
        versions: BTreeMap::new(),
        seconds: 0.0,
        run_dir: None,
    }
}
