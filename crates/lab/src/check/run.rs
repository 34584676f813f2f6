//! The runs of a suite, and the cases that are made from their reports.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;

use super::SuiteCheck;
use super::absent::UnavailableEngines;
use super::select::{PlannedCase, PlannedRun};
use crate::console::Verbosity;
use crate::limits::CANNOT_RUN;
use crate::order::{Order, Ranks};
use crate::queue::{NotStarted, Queue};
use crate::recorded::{diagnosis, own_words, reported};
use crate::scratch::Scratch;
use crate::script::{OUTPUT_FILE, ScriptEnded, ScriptRun};
use crate::worker::Worker;
use crate::{secrets, store};
use zprobe_model::spec::Engine;
use zprobe_model::trace::{Outcome, TraceError};
use zprobe_report::suite::{Case, Status, findings};
use zprobe_report::{Finding, OwnWords, Report, Verdict};

/// The largest number of lines of a script's output that are printed if there is no report on the script.
const LINES: usize = 10;

/// Runs all cases that can run on this machine, and notes for all others why they were not run.
pub fn all(
    tasks: &[PlannedCase<'_>],
    absent: &UnavailableEngines,
    check: &SuiteCheck<'_>,
    out: &Path,
) -> Result<Vec<Case>> {
    let scratch = Scratch::new(&store::place("pools")?)?;
    let queue = Queue::new(tasks.len())?.fail_fast(check.fail_fast);
    let done = |mut case: Case| {
        check.accepted.mark(&mut case);
        if case.status.is_bad() {
            queue.fail();
        }
        if let Some(words) = words(&check.accepted.as_reported(&case)) {
            queue.say(words);
        }
        case
    };
    // Scripts run one after the other, because launchers use the same port.
    let scripts = Mutex::new(());
    let workers = (check.jobs, |number| Worker::new(scratch.path().join(format!("{number}"))));
    let cases = queue.all(
        tasks,
        workers,
        |_, task| task.id(),
        |worker, task| {
            let is_script = task.engine == Engine::Script;
            let _turn = is_script.then(|| scripts.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(reason) = queue.over() {
                return Err(reason);
            }
            let case = match absent.reason(task) {
                Some(reason) => not_started(task, Status::Skipped, &reason),
                None => run(task, check.python, worker, out, &queue),
            };
            let is_stopped = queue.is_interrupted(worker.was_stopped());
            // A signal of the user ends a script, too, which then has an incomplete trace.
            let has_no_result =
                case.status == Status::NotRun || (is_script && case.status != Status::Passed);
            if has_no_result && is_stopped {
                return Err(NotStarted::Interrupted);
            }
            Ok(done(case))
        },
    );
    let cases = cases.into_iter().zip(tasks).map(|(case, task)| {
        case.unwrap_or_else(|reason| {
            let status = match reason {
                NotStarted::Interrupted => Status::Inconclusive,
                NotStarted::AfterFailure | NotStarted::TimeIsUp => Status::Skipped,
            };
            done(match absent.reason(task) {
                Some(reason) => not_started(task, Status::Skipped, &reason),
                None => not_started(task, status, &reason.to_string()),
            })
        })
    });
    Ok(cases.collect())
}

/// The line that is printed when a case is over; `None` for a good case of an engine without `--verbose`. A bad case is
/// shown at once, because people may wait for the suite for minutes. So may they for a single script.
fn words(case: &Case) -> Option<String> {
    let words = if case.status.is_bad() {
        format!(": {}", case.complaint().lines().next().unwrap_or_default())
    } else if case.status == Status::Accepted {
        let accepted = case.findings.iter().filter_map(|it| {
            let why = it.accepted.as_ref()?;
            Some(format!("{} until {}: {}", it.finding.code, why.expires, why.reason))
        });
        format!(": {}", accepted.collect::<Vec<_>>().join("; "))
    } else if case.engine == Engine::Script && case.run_was_made() {
        format!(" ({:.1} s)", case.seconds)
    } else if Verbosity::get().verbose {
        String::new()
    } else {
        return None;
    };
    Some(format!("{}: {}{words}", case.status, case.id()))
}

/// Runs a case. A failure to run is the outcome of the case, and not an error.
fn run(
    task: &PlannedCase<'_>,
    python: &Path,
    worker: &mut Worker,
    out: &Path,
    queue: &Queue,
) -> Case {
    let start = Instant::now();
    let dir = out.join(task.engine.name()).join(&task.chosen.probe.name);
    let case = match &task.run {
        PlannedRun::OfEngine(spec, ranks) => {
            let ranks = match ranks {
                Ranks::Cuda(cuda) => Ranks::Cuda(cuda.clone()),
                _ => Ranks::Warm(python.to_owned()),
            };
            let order = Order { spec: (**spec).clone(), ranks, repeats: 1 };
            worker
                .report(order, &dir)
                .map(|report| judged(task, &report, &own_words(&dir, &report).unwrap_or_default()))
        }
        PlannedRun::OfScript { arguments, programs } => {
            let programs = programs.as_deref();
            let script = ScriptRun { arguments, programs, working_dir: None, variables: &[] };
            script.run(&dir, queue).map(|ended| of_script(task, &dir, &ended, queue))
        }
    };
    let mut case =
        case.unwrap_or_else(|error| not_started(task, Status::NotRun, &format!("{error:#}")));
    case.seconds = start.elapsed().as_secs_f64();
    if case.status.is_bad() && dir.exists() {
        case.run_dir = Some(dir);
    } else {
        // The directory of the engine is removed, too, once it is empty.
        let _ = fs::remove_dir_all(&dir);
        let _ = dir.ancestors().skip(1).take(1).try_for_each(fs::remove_dir);
    }
    case
}

/// The case of a script that has ended. If there is no report, the end of the script's output is printed, because only
/// the script says what is wrong with it.
fn of_script(task: &PlannedCase<'_>, dir: &Path, ended: &ScriptEnded, queue: &Queue) -> Case {
    let mut case = match reported(dir) {
        Ok(report) => {
            let case = judged(task, &report, &own_words(dir, &report).unwrap_or_default());
            // An observed script goes on after the observed steps.
            match ended.status.code() {
                Some(0) => return case,
                _ if case.status != Status::Passed || report.verdict != Verdict::Clean => {
                    return case;
                }
                Some(code) => {
                    let reason = format!("no finding, but the script failed with exit code {code}");
                    Case { reason: Some(reason), ..blank(task, Status::Crashed) }
                }
                None => not_started(task, Status::NotRun, "zprobe exec was killed"),
            }
        }
        Err(_) => match diagnosis(dir).map_err(|error| error.downcast()) {
            Err(Ok(TraceError::NoAnswer { reason, .. })) => {
                let status = match reason.outcome() {
                    Some(outcome) if outcome != Outcome::Code(0) => Status::Crashed,
                    _ => Status::Inconclusive,
                };
                not_started(task, status, &reason.to_string())
            }
            _ => {
                let line = ended.last_line().trim_start_matches("error: ");
                return not_started(task, Status::NotRun, line);
            }
        },
    };
    if let Some(reason) = &mut case.reason {
        *reason += &format!("; {OUTPUT_FILE} in the run's directory has the output");
    }
    let words = secrets::of_machine().text(&ended.last_lines(LINES));
    if !words.is_empty() && queue.over() != Some(NotStarted::Interrupted) {
        queue.say(format_args!(
            "the last lines of {}:\n{}",
            dir.join(OUTPUT_FILE).display(),
            words.trim_end()
        ));
    }
    case
}

fn judged(task: &PlannedCase<'_>, report: &Report, said: &OwnWords) -> Case {
    let judgement = task.chosen.probe.expect.judge(report, said);
    let versions = report.run.versions.clone();
    // A case that cannot run on this machine says nothing about the engine.
    if let Some(reason) = report.limit().filter(|_| !judgement.ok) {
        let reason = format!("{CANNOT_RUN}: {reason}");
        return Case { versions, ..not_started(task, Status::Skipped, &reason) };
    }
    let (limits, others): (Vec<&Finding>, Vec<&Finding>) =
        report.findings.iter().partition(|finding| finding.limit.is_some());
    let status = match Status::of(report.verdict) {
        _ if judgement.ok => Status::Passed,
        // First arm: the run is clean, but a finding was expected. Second arm: the run had findings before it met the
        // limit.
        Status::Passed => Status::Failed,
        Status::Crashed if !limits.is_empty() => Status::Failed,
        status => status,
    };
    let names = others.iter().map(|finding| format!("{} {}", finding.code, finding.name));
    let got = if limits.is_empty() { judgement.got } else { names.collect::<Vec<_>>().join(", ") };
    Case { got, findings: findings(report), versions, ..blank(task, status) }
}

fn not_started(task: &PlannedCase<'_>, status: Status, reason: &str) -> Case {
    let case = blank(task, status);
    Case { got: "no run".to_owned(), reason: Some(reason.to_owned()), ..case }
}

fn blank(task: &PlannedCase<'_>, status: Status) -> Case {
    let probe = &task.chosen.probe;
    Case {
        probe: probe.name.clone(),
        engine: task.engine,
        description: probe.description.clone(),
        file: task.chosen.file.clone(),
        command: task.command.clone(),
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
