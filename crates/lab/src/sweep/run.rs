//! The runs of a sweep, and the rows that are made from their reports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::plan::SweepPlan;
use crate::lattice::Configuration;
use crate::lattice::outcome::{Sweep, SweepEnding, SweepOutcome, SweepRow};
use crate::limits::Limits;
use crate::order::{Order, ParseOrder, Ranks};
use crate::queue::{NotStarted, Queue};
use crate::scratch::Scratch;
use crate::store;
use crate::worker::Worker;
use zprobe_model::trace::combined_digest;

/// The options of a sweep's runs.
pub struct SweepOptions<'a> {
    /// The number of optimizer steps of each run.
    pub steps: usize,
    /// The arguments for `--timeout`: after how much silence a rank counts as hung.
    pub timeout: Vec<String>,
    /// The number of pools that run side by side.
    pub jobs: usize,
    /// The time after which no run is started; `None` for no limit.
    pub time_limit: Option<Duration>,
    /// True if a configuration that is not clean is run once more, to confirm its outcome.
    pub confirm: bool,
    /// The directory for the runs that are not clean; `None` keeps no runs.
    pub keep: Option<&'a Path>,
}

impl SweepOptions<'_> {
    /// Runs the plan's configurations with the interpreter `python`. A configuration that was not started, because
    /// time was up or the user ended the sweep, has no row.
    pub fn sweep(&self, plan: SweepPlan, python: PathBuf, order: &ParseOrder<'_>) -> Result<Sweep> {
        let scratch = Scratch::new(&store::place("sweep")?)?;
        let queue = Queue::new(plan.chosen.len())?.time_limit(self.time_limit);
        let bench = SweepRunner { runs: self, order, limits: Limits::default(), python };
        let worker = |number| Worker::new(scratch.path().join(format!("pool-{number}")));
        let results = queue.all(
            &plan.chosen,
            (self.jobs, worker),
            |_, configuration| configuration.label(),
            |worker, configuration| {
                let place = self.keep.unwrap_or(scratch.path());
                let dir = place.join(file_name(&configuration.arguments()[2..]));
                let (row, versions) = bench.try_one(worker, configuration, dir);
                let is_open =
                    matches!(row.outcome.ending, SweepEnding::NotRun | SweepEnding::Inconclusive);
                if queue.is_interrupted(worker.was_stopped()) && is_open {
                    return Err(NotStarted::Interrupted);
                }
                if row.outcome.ending != SweepEnding::Clean {
                    let own = row.outcome.own_words().map(|own| format!(" {own}"));
                    let own = own.unwrap_or_default();
                    queue.say(format_args!("{}: {}{own}", row.label, row.outcome.words()));
                }
                Ok((row, versions))
            },
        );
        drop(queue);
        let (rows, versions): (Vec<SweepRow>, Vec<Versions>) =
            results.into_iter().flatten().unzip();
        Ok(plan.sweep(self.steps, rows, versions.into_iter().flatten().collect()))
    }
}

/// The versions of the packages that a run used, by name.
type Versions = BTreeMap<String, String>;

/// Largest number of bytes of a directory name that consists of words; file systems allow 255.
const MOST_NAME: usize = 200;

/// The name for the directory of a run: the words after the engine's name. If the words are too long, the name has
/// their beginning and a digest of all of them.
fn file_name(words: &[String]) -> String {
    let name = words.join(" ").replace("--", "").replace([' ', '/'], "-");
    if name.len() <= MOST_NAME {
        return name;
    }
    let digest = combined_digest([name.as_str()]);
    // The cut is safe, because flags and their values are ASCII.
    format!("{}-{digest}", name.chars().take(MOST_NAME).collect::<String>())
}

/// The settings and tools with which a configuration is run and its outcome confirmed.
struct SweepRunner<'a> {
    runs: &'a SweepOptions<'a>,
    order: &'a ParseOrder<'a>,
    limits: Limits,
    python: PathBuf,
}

impl SweepRunner<'_> {
    /// Runs a configuration. A failure to run is the outcome of the configuration, and not an error.
    fn try_one(
        &self,
        worker: &mut Worker,
        configuration: &Configuration,
        dir: PathBuf,
    ) -> (SweepRow, Versions) {
        let start = Instant::now();
        let (mut outcome, versions) = self.outcome(worker, configuration, &dir);
        let good = matches!(outcome.ending, SweepEnding::Clean | SweepEnding::Skipped);
        if self.runs.confirm && !good {
            // Not `with_extension`: a dot in the name may be that of a number.
            let mut second = dir.clone().into_os_string();
            second.push(".again");
            let second = PathBuf::from(second);
            outcome.confirm(&self.outcome(worker, configuration, &second).0);
            let _ = fs::remove_dir_all(&second);
        }
        let kept = self.runs.keep.is_some() && !good && dir.exists();
        if !kept {
            let _ = fs::remove_dir_all(&dir);
        }
        let row = SweepRow {
            label: configuration.label(),
            command: configuration.command(),
            configuration: configuration.clone(),
            outcome,
            seconds: start.elapsed().as_secs_f64(),
            run_dir: kept.then_some(dir),
        };
        (row, versions)
    }

    fn outcome(
        &self,
        worker: &mut Worker,
        it: &Configuration,
        dir: &Path,
    ) -> (SweepOutcome, Versions) {
        let mut arguments = it.arguments();
        arguments.extend(["--steps".to_owned(), self.runs.steps.to_string()]);
        arguments.extend(self.runs.timeout.iter().cloned());
        let not_run =
            |error: anyhow::Error| (SweepOutcome::not_run(&format!("{error:#}")), Versions::new());
        let order = match (self.order)(&arguments) {
            Ok(order) => order,
            Err(error) => return not_run(error),
        };
        if let Some(reason) = self.limits.refusal(&order.spec, &self.python) {
            return (SweepOutcome::skipped(&reason), Versions::new());
        }
        let ranks = match order.ranks {
            Ranks::Cuda(cuda) => Ranks::Cuda(cuda),
            _ => Ranks::Warm(self.python.clone()),
        };
        let order = Order { ranks, ..order };
        match worker.report(order, dir) {
            Ok(report) => (SweepOutcome::of(&report), report.run.versions),
            Err(error) => not_run(error),
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
