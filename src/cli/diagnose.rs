//! `zprobe diagnose`: the same report again from a recorded run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use zprobe::diagnose;
use zprobe::diagnose::repeats::Repeats;
use zprobe::redact::taken_out;
use zprobe::report::Report;
use zprobe::trace::{Trace, trace_dirs};

use super::{minimise, secrets};

/// Arguments of `zprobe diagnose`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory that `zprobe run` recorded
    run_dir: PathBuf,

    #[command(flatten)]
    output: super::Output,
}

pub fn main(args: &Args) -> Result<u8> {
    let (report, trace) = diagnosis(&args.run_dir)?;
    args.output.hand_out(&report, &trace)
}

/// The report on a recorded run, with the smallest configuration if that was looked for, and the
/// trace that it is about: of repeats, that of the one that is shown.
pub fn diagnosis(run_dir: &Path) -> Result<(Report, Trace)> {
    let (report, trace) = of_traces(&trace_dirs(run_dir))?;
    let minimised = minimise::recorded(run_dir)?;
    let redactor = secrets::of_run(run_dir, &trace)?;
    let minimised = minimised.map(|found| redactor.data(&found)).transpose()?;
    Ok((Report { minimised, masked: taken_out(&trace), ..report }, trace))
}

/// A recorded trace without secrets.
fn read(dir: &Path) -> Result<Trace> {
    let mut trace = Trace::read(dir)?;
    secrets::of_run(dir, &trace)?
        .trace(&mut trace)
        .with_context(|| format!("cannot keep secrets out of {}", dir.display()))?;
    Ok(trace)
}

/// The report on a trace, or on those of all repeats.
fn of_traces(dirs: &[PathBuf]) -> Result<(Report, Trace)> {
    let first = read(&dirs[0])?;
    if dirs.len() == 1 {
        return Ok((diagnose::diagnose(&first), first));
    }
    let spec = first.spec.clone();
    let mut repeats = Repeats::new(first);
    for dir in &dirs[1..] {
        let trace = read(dir)?;
        ensure!(
            trace.spec == spec,
            "{} is no repeat of the run in {}: other settings were run; take it out",
            dir.display(),
            dirs[0].display(),
        );
        repeats.add(&trace);
    }
    let report = repeats.report();
    let shown = report.repeats.as_ref().map_or(0, |repeats| repeats.shown);
    Ok((report, read(&dirs[shown])?))
}
