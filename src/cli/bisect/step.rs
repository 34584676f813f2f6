//! `zprobe bisect step`: makes one run for `git bisect run`, and judges the commit by the exit code.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use zprobe_diagnose::rules;
use zprobe_lab::bisect::{FindingSignature, SignatureMatch};
use zprobe_lab::console::say;
use zprobe_lab::order::{Order, Ranks};
use zprobe_lab::recorded::diagnosis;
use zprobe_lab::run::record;
use zprobe_lab::runs::{LATEST, find};
use zprobe_lab::store::{self, run_id};
use zprobe_model::spec::SpecRequest;
use zprobe_report::Exit;
use zprobe_zoo::got;

use crate::cli::interpreter::{Python, elsewhere};
use crate::cli::nodes::refuse_launcher;

/// The exit code that makes `git bisect run` skip a commit.
const SKIP: Exit = Exit::OfCommand(125);

/// The exit code that ends `git bisect run`: a smaller one would mark the commit as bad.
pub const ABORT: Exit = Exit::OfCommand(128);

/// The arguments of `zprobe bisect step`.
#[derive(clap::Args)]
pub struct BisectStepArgs {
    /// Recorded run that shows the finding (a directory, or the beginning of a name): a commit is bad if it shows the same rule with the same weights [default: bad if it shows any finding, or the one of --code]
    #[arg(value_name = "RUN")]
    run_dir: Option<PathBuf>,

    /// Rule whose finding makes a commit bad
    #[arg(long, value_name = "CODE", conflicts_with = "run_dir")]
    code: Option<String>,

    /// Swap good and bad, to find the first commit without the finding: good shows it, bad does not
    #[arg(long)]
    fixed: bool,

    /// Make the run N times, for a finding that occurs only sometimes
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: usize,

    /// Directory for the run [default: a new one under .zprobe/bisect]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    python: Python,

    #[command(flatten)]
    request: SpecRequest,
}

/// Makes the run and judges the commit. An error before the run ends the bisection, because it would occur at the
/// next commit, too.
pub fn main(args: &BisectStepArgs) -> Result<Exit> {
    refuse_launcher("bisect step")?;
    ensure!(args.repeat > 0, "--repeat 0: must be at least 1");
    let code = args.code.as_deref().map(|code| {
        rules::find(code)
            .with_context(|| format!("--code {code}: no such rule; see `zprobe list rules`"))
    });
    let code = code.transpose()?;
    if let Some(run) = args.run_dir.as_ref().filter(|run| run.to_string_lossy().starts_with(LATEST))
    {
        bail!(
            "{}: every step records a run, so at the next commit this would be another run; name the run \
             (`zprobe list runs`)",
            run.display()
        );
    }
    let found = args.run_dir.as_deref().map(|run| find(Path::new(""), Some(run))).transpose()?;
    let recorded = found.map(|run_dir| diagnosis(&run_dir)).transpose()?;
    let signature = match &recorded {
        Some((report, _)) => {
            Some(FindingSignature::of(report).context("the recorded run has no finding")?)
        }
        None => None,
    };
    let spec = match recorded {
        Some((report, _)) => report.run.spec,
        None => args.request.clone().resolve()?,
    };
    ensure!(
        spec.script().is_none(),
        "bisect cannot repeat a run of your own script; give an engine with --engine"
    );
    let python = args.python.choose();
    python.must_have(spec.engine())?;
    if let Some(warning) = elsewhere(&python, spec.engine(), &std::env::current_dir()?) {
        say(format_args!("warning: {warning}"));
    }
    let order = Order { spec, ranks: Ranks::Cold(python.path), repeats: args.repeat };
    let order = if args.repeat > 1 { order.warm() } else { order };
    let out = args.out.clone().map_or_else(|| store::place("bisect"), Ok)?;
    let (report, _) = record(&order, &run_id(), &out, None)?;
    let seen = match (&signature, code) {
        (Some(signature), _) => signature.seen_in(&report),
        (None, Some(rule)) if report.findings.iter().any(|it| it.code == rule.code) => {
            SignatureMatch::Same
        }
        (None, code) => match report.exit() {
            Exit::Clean => SignatureMatch::Absent,
            Exit::Findings if code.is_some() => SignatureMatch::Absent,
            Exit::Findings => SignatureMatch::Same,
            _ => SignatureMatch::Unclear(got(&report)),
        },
    };
    let (exit, word) = match (&seen, args.fixed) {
        (SignatureMatch::Unclear(_), _) => (SKIP, "skip"),
        (SignatureMatch::Same, false) | (SignatureMatch::Absent, true) => (Exit::Findings, "bad"),
        (SignatureMatch::Absent, false) | (SignatureMatch::Same, true) => (Exit::Clean, "good"),
    };
    say(format_args!("{word}: {}; recorded in {}", got(&report), out.display()));
    Ok(exit)
}
