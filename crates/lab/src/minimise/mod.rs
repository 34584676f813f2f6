//! `--minimise`: the search for the smallest configuration that still shows a finding.

mod reductions;
mod search;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use self::search::minimise;
use super::limits::CANNOT_RUN;
use super::order::Order;
use super::queue::Queue;
use super::recorded::{MINIMISED_FILE, REPORT_FILE, diagnosis, write_new};
use super::repeat;
use super::runner::Runner;
use super::scratch::Scratch;
use super::store::run_id;
use crate::console::say;
use zprobe_diagnose::rules;
use zprobe_model::spec::deepspeed::DeepSpeedConfig;
use zprobe_model::spec::{RunSpec, SpecRequest};
use zprobe_report::{Finding, Minimised, Report, RuleCode, Trial};

/// The directory, inside of the run directory, of the run with the smallest configuration.
const SMALLEST: &str = "smallest";

/// The directory, inside of the run directory, of the runs of the search.
const TRIALS: &str = "minimise";

/// The input of a search for the smallest configuration.
pub struct MinimiseTask<'a> {
    /// The code of the finding; empty for the first finding of the report.
    pub code: &'a str,
    /// The largest number of runs that the search may make.
    pub limit: usize,
    /// The flags of the run, without the settings of the DeepSpeed file.
    pub flags: SpecRequest,
    /// The DeepSpeed file that was given in addition to the flags.
    pub file: Option<&'a Path>,
    /// Builds the command line of a run with these arguments in place of its flags. The second parameter is true if the
    /// DeepSpeed file is kept.
    pub command: &'a dyn Fn(Vec<String>, bool) -> Result<String>,
}

/// The features by which two findings are the same: the code and, for a crash, the engine's words without digits.
fn kind(finding: &Finding) -> (RuleCode, Option<String>) {
    let words = || finding.message.chars().filter(|c| !c.is_ascii_digit()).collect();
    let is_crash = rules::is_crash(finding.code);
    (finding.code, is_crash.then(words))
}

/// Searches for the smallest configuration, starting from that of the run in `run_dir`, and writes the result into
/// that directory.
pub fn search(task: MinimiseTask<'_>, order: Order, report: &Report, run_dir: &Path) -> Result<()> {
    let code = task.code;
    let found = &report.findings;
    let wanted = found.iter().find(|it| code.is_empty() || it.code.eq_ignore_ascii_case(code));
    let Some(wanted) = wanted else {
        let has =
            |it: &&Finding| it.consequences.iter().any(|it| it.code.eq_ignore_ascii_case(code));
        let what = match found.iter().find(has) {
            Some(root) => &*format!("the finding follows from {0}: use --minimise {0}", root.code),
            None if code.is_empty() => "the run has no findings",
            None => "the run does not have this finding",
        };
        say(format_args!("note: nothing was minimised: {what}"));
        return Ok(());
    };
    if let Some(reason) = &wanted.limit {
        say(format_args!("note: nothing was minimised: {CANNOT_RUN}: {reason}"));
        return Ok(());
    }
    let scratch = Scratch::new(&run_dir.join(TRIALS))?;
    let order = order.warm();
    let mut runner = MinimiseRunner {
        runner: Runner::new(&order, scratch.path(), None)?,
        wanted: kind(wanted),
        order,
        smallest: run_dir.join(SMALLEST),
        scratch,
        made: 0,
        interrupted: false,
        queue: Queue::new(task.limit)?,
    };
    let found = look(task, wanted.code, &mut runner);
    if found.is_err() && runner.interrupted {
        runner.queue.say("note: interrupted before the smallest configuration was found");
        return Ok(());
    }
    write_new(&run_dir.join(MINIMISED_FILE), &serde_json::to_string_pretty(&found?)?)
}

/// Searches for the smallest configuration, starting from the user's configuration.
fn look(task: MinimiseTask<'_>, code: RuleCode, runner: &mut MinimiseRunner) -> Result<Minimised> {
    let MinimiseTask { limit, flags, file, command, .. } = task;
    let fill = |request: &mut SpecRequest| match file {
        Some(path) => DeepSpeedConfig::read(path)?.apply(request).map_err(anyhow::Error::from),
        None => Ok(Vec::new()),
    };
    let mut filled = flags.clone();
    fill(&mut filled)?;
    let start = filled.sayable();
    let resolve = |request: &SpecRequest| request.clone().resolve().ok();
    let mut without_file = None;
    if file.is_some() {
        // The flags with the values of the file may suffice without the file.
        let change = "without --deepspeed-config".to_owned();
        without_file = Some(match resolve(&start) {
            Some(spec) => runner.ask(&change, &spec)?,
            None => Trial { change, said: "cannot be run".to_owned(), kept: false },
        });
    }
    let keeps_file = without_file.as_ref().is_some_and(|trial| !trial.kept);
    let mut ask = |change: &str, spec: &RunSpec| runner.ask(change, spec);
    let smallest = if keeps_file {
        let resolve = |request: &SpecRequest| {
            let mut request = request.clone();
            fill(&mut request).ok()?;
            request.resolve().ok()
        };
        minimise(flags, &resolve, limit, &mut ask)?
    } else {
        minimise(start, &resolve, limit, &mut ask)?
    };
    Ok(Minimised {
        code,
        command: command(smallest.request.arguments(), keeps_file)?,
        complete: smallest.complete,
        trials: without_file.into_iter().chain(smallest.trials).collect(),
    })
}

/// The runs of a search for the smallest configuration.
struct MinimiseRunner {
    runner: Runner<'static>,
    wanted: (RuleCode, Option<String>),
    /// The order of the run; each trial replaces its settings.
    order: Order,
    /// The directory of the last run that still shows the finding.
    smallest: PathBuf,
    scratch: Scratch,
    made: usize,
    /// True once the user has ended the search.
    interrupted: bool,
    queue: Queue,
}

impl MinimiseRunner {
    fn ask(&mut self, change: &str, spec: &RunSpec) -> Result<Trial> {
        self.made += 1;
        let dir = self.scratch.path().join(format!("trial-{}", self.made));
        let Self { runner, order, queue, .. } = self;
        order.spec = spec.clone();
        let unseen = Queue::unseen()?;
        let run = || repeat::all(runner, order, &run_id(), &dir, &unseen);
        let went_on = queue.job(change, run).unwrap_or(Ok(false))?;
        if !went_on {
            self.interrupted = true;
            bail!("interrupted");
        }
        let (report, _) = diagnosis(&dir)?;
        let kept = report.findings.iter().any(|finding| kind(finding) == self.wanted);
        let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
        let outcome = match report.limit() {
            Some(reason) => format!("{CANNOT_RUN}: {reason}"),
            None if codes.is_empty() => report.verdict.to_string(),
            None => codes.join(", "),
        };
        self.queue.say(format_args!("{change}: {outcome}"));
        if kept {
            let _ = fs::remove_dir_all(&self.smallest);
            write_new(&dir.join(REPORT_FILE), &report.to_json()?)?;
            fs::rename(&dir, &self.smallest)
                .with_context(|| format!("cannot write {}", self.smallest.display()))?;
        } else {
            let _ = fs::remove_dir_all(&dir);
        }
        Ok(Trial { change: change.to_owned(), said: outcome, kept })
    }
}
