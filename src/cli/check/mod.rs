//! `zprobe check`: every probe of a suite over warm ranks, and one answer for a CI.
//!
//! A case is a probe on one engine: a `zprobe run` with the arguments that the probe gives, over a pool,
//! so that each engine is loaded once. An engine that cannot run here is left out, and said so.

mod accept;
mod engines;
mod run;
mod select;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueHint;
use zprobe::report::render::suite::SuiteFormat;
use zprobe::report::suite::{Case, Status, Suite};
use zprobe::run_dir::Claim;
use zprobe::spec::Engine;
use zprobe::spec::settings::Timeout;

use self::accept::Accepted;
use super::interpreter::Python;
use super::{ci, config, console, page, secrets, store, verbosity};

/// Arguments of `zprobe check`.
#[derive(clap::Args)]
pub struct Args {
    /// Probes: names, TOML files, or directories of these [default: the standard suite]
    #[arg(value_name = "PROBE", value_hint = ValueHint::AnyPath, env = "ZPROBE_PROBES", value_delimiter = ',')]
    probes: Vec<String>,

    /// Only on this engine, which then has to be there; may be repeated [default: all that can run]
    #[arg(long, env = "ZPROBE_ENGINE", value_delimiter = ',')]
    engine: Vec<Engine>,

    #[command(flatten)]
    python: Python,

    /// Only cases whose name, description or arguments contain this; several narrow it down
    #[arg(long, value_name = "SUBSTRING", env = "ZPROBE_FILTER")]
    filter: Vec<String>,

    /// Start nothing more after the first case that is not well
    #[arg(
        long,
        env = "ZPROBE_FAIL_FAST",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    fail_fast: bool,

    /// Pools side by side
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    #[command(flatten)]
    timeout: Timeout,

    /// Only list what would be run
    #[arg(long)]
    list: bool,

    /// Directory for the runs that are not well [default: a new one under .zprobe/check]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    #[command(flatten)]
    baseline: accept::Known,

    /// Form of the report on standard output
    #[arg(long, value_name = "FORMAT", default_value = "full", env = "ZPROBE_OUTPUT_FORMAT")]
    output_format: SuiteFormat,

    /// Also write the report as JSON to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JSON")]
    export_json: Option<PathBuf>,

    #[command(flatten)]
    exports: ci::Exports,

    /// Exit with 0 whatever came of the cases; errors that kept anything from running still exit with 2
    #[arg(long, env = "ZPROBE_EXIT_ZERO", value_parser = clap::builder::BoolishValueParser::new())]
    exit_zero: bool,

    #[command(flatten)]
    config: config::Choice,
}

pub fn main(args: &Args) -> Result<u8> {
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    let start = Instant::now();
    let accepted = Accepted::read(&args.baseline)?;
    let probes = select::probes(&args.probes)?;
    let tasks = select::tasks(&probes, args)?;
    if args.list {
        console::plain(&select::list(&tasks))?;
        return Ok(0);
    }
    let python = args.python.choose().path;
    let absent = engines::Absent::look(&tasks, &python)?;
    refuse_missing(&absent.engines, args)?;
    let out = args.out.clone().map_or_else(|| store::place("check"), Ok)?;
    let claim = Claim::new(&out)?;
    let mut cases = run::run_all(&tasks, &absent, args, (&python, &accepted), &out)?;
    let whole = args.probes.is_empty() && args.engine.is_empty() && args.filter.is_empty();
    let notices = accepted.finish(&mut cases, whole)?;
    if cases.iter().any(|case| case.run_dir.is_some()) {
        verbosity::say(format_args!("recorded in {}", out.display()));
        claim.keep();
    }
    let unchecked = unchecked(&cases, args);
    let mut suite = Suite::new(cases, notices, configuration(args)?, page);
    if let Some(why) = &unchecked {
        suite = suite.without_answer(why.clone());
    }
    suite.seconds = start.elapsed().as_secs_f64();
    let suite = secrets::without(suite)?;
    ci::print(&suite, args.output_format)?;
    if let Some(path) = &args.export_json {
        ci::write(path, &suite.to_json()?)?;
    }
    args.exports.write(&suite)?;
    let nothing_ran = !suite.cases.iter().any(|case| case.run_was_made());
    if nothing_ran {
        let reason = suite.cases.iter().find(|case| case.status == Status::NotRun);
        let reason = reason.and_then(|case| case.reason.as_deref()).unwrap_or("see above");
        bail!("nothing ran: {reason}");
    }
    if let Some(why) = unchecked.filter(|_| suite.exit_code == super::USAGE) {
        bail!(why);
    }
    Ok(if args.exit_zero { 0 } else { suite.exit_code })
}

/// Why these cases are no answer about the engines that are meant: those that are named, or else any
/// real one. zprobe's own says nothing about them.
fn unchecked(cases: &[Case], args: &Args) -> Option<String> {
    let was_run =
        |engine: &Engine| cases.iter().any(|case| case.engine == *engine && case.run_was_made());
    if args.engine.is_empty() {
        let real = Engine::ALL.iter().filter(|engine| **engine != Engine::Native);
        return real.clone().all(|engine| !was_run(engine)).then(|| {
            "no real engine was checked: what was run is zprobe's own. Name the Python that has yours \
             with --python; if zprobe's own is meant, say --engine native"
                .to_owned()
        });
    }
    let engine = args.engine.iter().find(|engine| !was_run(engine))?;
    Some(format!("--engine {engine}: none of its probes was run"))
}

/// An engine that somebody has asked for has to be there.
fn refuse_missing(missing: &BTreeMap<Engine, String>, args: &Args) -> Result<()> {
    match missing.iter().find(|(engine, _)| args.engine.contains(engine)) {
        Some((engine, reason)) => bail!("--engine {engine}: {reason}"),
        None => Ok(()),
    }
}

/// The file that stands for probes which have none of their own, from the working directory.
fn configuration(args: &Args) -> Result<String> {
    let dir = std::env::current_dir().context("cannot find the working directory")?;
    let found = args.config.find(&dir)?;
    let path = found.map_or_else(|| PathBuf::from(config::FILE), |config| config.path);
    Ok(select::shown(&path, &dir))
}
