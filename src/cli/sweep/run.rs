//! Has every configuration run by a worker, `--jobs` of them side by side.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use zprobe::lattice::Configuration;
use zprobe::lattice::outcome::{Ending, Outcome, Row};
use zprobe::trace::combined_digest;

use super::Args;
use super::plan::Plan;
use crate::cli::limits::Limits;
use crate::cli::workers::{Worker, progress, stop_on_signals};
use crate::cli::{console, run, verbosity};

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
    let limits = Limits::default();
    let work = |job: usize| {
        let worker = Worker::new(args.engine, python, scratch.join(format!("pool-{job}")));
        let mut job = Job { args, python, limits: &limits, worker };
        while !stopped.load(Ordering::Relaxed) && limit.is_none_or(|it| start.elapsed() < it) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(configuration) = plan.chosen.get(at) else { return };
            console::message(&line, &configuration.label());
            let dir = args
                .keep
                .as_deref()
                .unwrap_or(scratch)
                .join(file_name(&configuration.arguments()[2..]));
            let (row, versions) = job.try_one(configuration, dir, at);
            line.inc(1);
            if row.outcome.ending != Ending::Clean {
                let words = [&row.label, row.outcome.words().as_str()].join(": ");
                let own = row.outcome.own_words().unwrap_or_default();
                line.suspend(|| verbosity::say(format_args!("{words} {own}")));
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

/// Most bytes of a name that is told in words; file systems take 255.
const MOST_NAME: usize = 200;

/// A name for the directory of its run: the words behind the engine's name. Where these are too many,
/// their beginning, with a digest of all.
fn file_name(words: &[String]) -> String {
    let name = words.join(" ").replace("--", "").replace([' ', '/'], "-");
    if name.len() <= MOST_NAME {
        return name;
    }
    let digest = combined_digest([name.as_str()]);
    // Flags and their values are ASCII.
    format!("{}-{digest}", name.chars().take(MOST_NAME).collect::<String>())
}

/// Runs configurations, each as often as it takes.
struct Job<'a> {
    args: &'a Args,
    python: &'a Path,
    limits: &'a Limits,
    worker: Worker<'a>,
}

impl Job<'_> {
    /// Whatever keeps a configuration from running is its outcome, and not an error.
    fn try_one(
        &mut self,
        configuration: &Configuration,
        dir: PathBuf,
        number: usize,
    ) -> (Row, Versions) {
        let start = Instant::now();
        let (mut outcome, versions) = self.outcome(configuration, &dir, number);
        let good = matches!(outcome.ending, Ending::Clean | Ending::Skipped);
        if self.args.confirm && !good {
            let second = dir.with_extension("again");
            outcome.confirm(&self.outcome(configuration, &second, number).0);
            let _ = fs::remove_dir_all(&second);
        }
        let kept = self.args.keep.is_some() && !good;
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
        let mut arguments = it.arguments();
        let spec = run::Args::parse(&arguments).ok().and_then(|args| args.spec(None).ok());
        if let Some(reason) = spec.and_then(|spec| self.limits.refusal(&spec, self.python)) {
            return (Outcome::skipped(&reason), Versions::new());
        }
        arguments.extend(["--steps".to_owned(), self.args.steps.to_string()]);
        arguments.extend(self.args.timeout.arguments());
        match self.worker.report(arguments, dir, number) {
            Ok(report) => (Outcome::of(&report), report.run.versions),
            Err(error) => (Outcome::not_run(&format!("{error:#}")), Versions::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_words_a_configuration_has_its_directory_has_a_name_of_its_own() {
        let words = |last: &str| {
            let many = (0..40).map(|n| format!("--flag-{n}"));
            many.chain([last.to_owned()]).collect::<Vec<_>>()
        };
        let [one, other] = ["1", "2"].map(|last| file_name(&words(last)));
        assert!(one.len() <= 255 && one != other, "{one}");
        assert_eq!(file_name(&["--ga".to_owned(), "3".to_owned()]), "ga-3");
    }
}
