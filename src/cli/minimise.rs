//! `zprobe run --minimise`: the smallest configuration that still shows a finding.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use zprobe::diagnose::rules;
use zprobe::minimise::{Answer, Attempt, minimise};
use zprobe::report::{Finding, Minimised, Report, RuleCode, Trial};
use zprobe::run_dir;
use zprobe::spec::{RunSpec, SpecRequest};
use zprobe::trace::repeat_dir;

use super::diagnose::diagnosis;
use super::limits::CANNOT_RUN;
use super::run::{self, REPORT_FILE};
use super::runner::Runner;
use super::workers::{Scratch, progress};
use super::{console, verbosity};

/// What was found out, in the run directory.
pub const MINIMISED_FILE: &str = "minimised.json";

/// Most bytes of that file.
const MOST_MINIMISED: u64 = 16 << 20;

/// Where in the run directory the run with the smallest configuration is.
const SMALLEST: &str = "smallest";

/// Where in the run directory the search takes place.
const TRIALS: &str = "minimise";

/// Flags of the search.
#[derive(clap::Args)]
pub struct Flags {
    /// Look for the smallest configuration that still shows this finding [default: the first one]
    #[arg(
        long,
        value_name = "CODE",
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = rule,
        help_heading = "Run"
    )]
    minimise: Option<String>,

    /// Most runs that --minimise may make
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Run")]
    minimise_runs: usize,
}

impl Flags {
    /// Whether there is something to look for.
    pub fn wanted(&self) -> bool {
        self.minimise.is_some()
    }
}

/// The code of a rule, or nothing.
fn rule(code: &str) -> Result<String, String> {
    match rules::find(code) {
        None if !code.is_empty() => Err("there is no such rule; see zprobe list rules".to_owned()),
        _ => Ok(code.to_owned()),
    }
}

/// What must be the same for a finding to be the same: its code, and of a crash the words of the
/// engine, but for numbers.
fn kind(finding: &Finding) -> (RuleCode, Option<String>) {
    let words = || finding.message.chars().filter(|c| !c.is_ascii_digit()).collect();
    let is_crash = rules::is_crash(finding.code);
    (finding.code, is_crash.then(words))
}

/// Looks for the smallest configuration, and leaves what it has found in the run directory.
pub fn search(args: &run::Args, report: &Report, run_dir: &Path) -> Result<()> {
    let flags = args.minimise();
    let code = flags.minimise.as_deref().unwrap_or_default();
    let found = &report.findings;
    let wanted = found.iter().find(|it| code.is_empty() || it.code.eq_ignore_ascii_case(code));
    let Some(wanted) = wanted else {
        let has =
            |it: &&Finding| it.consequences.iter().any(|it| it.code.eq_ignore_ascii_case(code));
        let what = match found.iter().find(has) {
            Some(root) => &*format!("that follows from {0}: --minimise {0}", root.code),
            None if code.is_empty() => "nothing was found",
            None => "that was not found",
        };
        verbosity::say(format_args!("note: nothing was minimised: {what}"));
        return Ok(());
    };
    if let Some(reason) = &wanted.limit {
        verbosity::say(format_args!("note: nothing was minimised: {CANNOT_RUN}: {reason}"));
        return Ok(());
    }
    let scratch = Scratch::new(&run_dir.join(TRIALS))?;
    let cuda = args.look_for_gpus()?;
    let asked = args.flags_alone(cuda.as_ref().map(|cuda| &cuda.gpus));
    let mut trials = Trials {
        runner: Runner::warm(args, &report.run.spec, cuda, scratch.path())?,
        wanted: kind(wanted),
        repeats: args.repeats()?,
        smallest: run_dir.join(SMALLEST),
        scratch,
        made: 0,
        interrupted: false,
        line: progress(flags.minimise_runs)?,
    };
    let found = look(args, asked, wanted.code, &mut trials);
    trials.line.finish_and_clear();
    let minimised = match found {
        Err(_) if trials.interrupted => {
            verbosity::say("note: interrupted before the smallest configuration was found");
            return Ok(());
        }
        found => found?,
    };
    let path = run_dir.join(MINIMISED_FILE);
    run::write_new(&path, &serde_json::to_string_pretty(&minimised)?)
}

/// The smallest configuration from what was `asked` for on.
fn look(
    args: &run::Args,
    asked: SpecRequest,
    code: RuleCode,
    trials: &mut Trials,
) -> Result<Minimised> {
    let mut filled = asked.clone();
    args.fill_from_file(&mut filled)?;
    let start = filled.sayable();
    let resolve = |request: &SpecRequest| request.clone().resolve().ok();
    let mut without_file = None;
    if args.has_file() {
        // What the file says may be enough as flags.
        let change = "without --deepspeed-config".to_owned();
        let answer = match resolve(&start) {
            Some(spec) => trials.ask(&change, &spec)?,
            None => Answer { still: false, said: "cannot be run".to_owned() },
        };
        without_file = Some(Attempt { change, answer });
    }
    let keeps_file = without_file.as_ref().is_some_and(|attempt| !attempt.answer.still);
    let limit = args.minimise().minimise_runs;
    let mut ask = |change: &str, spec: &RunSpec| trials.ask(change, spec);
    let smallest = if keeps_file {
        let resolve = |request: &SpecRequest| {
            let mut request = request.clone();
            args.fill_from_file(&mut request).ok()?;
            request.resolve().ok()
        };
        minimise(asked, &resolve, limit, &mut ask)?
    } else {
        minimise(start, &resolve, limit, &mut ask)?
    };
    Ok(Minimised {
        code,
        command: args.command(smallest.request.arguments(), keeps_file)?,
        complete: smallest.complete,
        trials: without_file.into_iter().chain(smallest.attempts).map(trial).collect(),
    })
}

fn trial(Attempt { change, answer }: Attempt) -> Trial {
    Trial { change, said: answer.said, kept: answer.still }
}

/// Runs of candidates.
struct Trials {
    runner: Runner,
    wanted: (RuleCode, Option<String>),
    repeats: usize,
    /// Where the last one that still shows the finding is kept.
    smallest: PathBuf,
    scratch: Scratch,
    made: usize,
    /// Whether the user has ended one of the runs.
    interrupted: bool,
    line: indicatif::ProgressBar,
}

impl Trials {
    fn ask(&mut self, change: &str, spec: &RunSpec) -> Result<Answer> {
        self.made += 1;
        console::message(&self.line, change);
        let dir = self.scratch.path().join(format!("trial-{}", self.made));
        for number in 0..self.repeats {
            let dir = if self.repeats == 1 { dir.clone() } else { repeat_dir(&dir, number) };
            let run_id = format!("{}-{}-{number}", run::run_id(), self.made);
            if !self.runner.run(spec, &run_id, &dir, &mut |_| {})? {
                self.interrupted = true;
                bail!("interrupted");
            }
        }
        self.line.inc(1);
        let (report, _) = diagnosis(&dir)?;
        let still = report.findings.iter().any(|finding| kind(finding) == self.wanted);
        let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
        let said = match report.limit() {
            Some(reason) => format!("{CANNOT_RUN}: {reason}"),
            None if codes.is_empty() => report.verdict.to_string(),
            None => codes.join(", "),
        };
        self.line.suspend(|| verbosity::say(format_args!("{change}: {said}")));
        if still {
            let _ = fs::remove_dir_all(&self.smallest);
            run::write_new(&dir.join(REPORT_FILE), &report.to_json()?)?;
            fs::rename(&dir, &self.smallest)
                .with_context(|| format!("cannot write {}", self.smallest.display()))?;
        } else {
            let _ = fs::remove_dir_all(&dir);
        }
        Ok(Answer { still, said })
    }
}

/// What an earlier search has found out about the run in this directory.
pub fn recorded(dir: &Path) -> Result<Option<Minimised>> {
    let path = dir.join(MINIMISED_FILE);
    match run_dir::read_text(&path, MOST_MINIMISED) {
        Ok(text) => Ok(Some(
            serde_json::from_str(&text)
                .with_context(|| format!("cannot understand {}", path.display()))?,
        )),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err).with_context(|| format!("cannot read {}", path.display())),
    }
}
