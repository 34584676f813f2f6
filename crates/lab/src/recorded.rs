//! Recorded runs: the files next to a trace, and the report that is made from the trace again.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::secrets;
use zprobe_diagnose as diagnose;
use zprobe_diagnose::repeats::RepeatComparison;
use zprobe_model::run_dir;
use zprobe_model::trace::{Trace, trace_dirs};
use zprobe_redact::taken_out;
use zprobe_report::{Minimised, OwnWords, Report, Verdict};

/// The name of the report in a run directory.
pub const REPORT_FILE: &str = "report.json";

/// The name, in a run directory, of the result of a search for the smallest configuration.
pub const MINIMISED_FILE: &str = "minimised.json";

/// Largest size of [`REPORT_FILE`], in bytes.
const MOST_REPORT: u64 = 1 << 30;

/// Largest size of [`MINIMISED_FILE`], in bytes.
const MOST_MINIMISED: u64 = 16 << 20;

/// The report on a recorded run, with the smallest configuration if there was a search for it, and the trace of the
/// run. Of several repeats, the trace is that of the repeat which the report shows.
pub fn diagnosis(run_dir: &Path) -> Result<(Report, Trace)> {
    let (mut report, trace) = of_traces(&trace_dirs(run_dir))?;
    report.run.command = report.command().map(|command| command.line());
    let minimised = minimised(run_dir)?;
    let redactor = secrets::of_run(run_dir, &trace)?;
    let minimised = minimised.map(|found| redactor.data(&found)).transpose()?;
    Ok((Report { minimised, masked: taken_out(&trace), ..report }, trace))
}

/// Makes the report on a recorded run and writes it next to the trace; returns the report and the trace.
pub fn report(run_dir: &Path) -> Result<(Report, Trace)> {
    let (report, trace) = diagnosis(run_dir)?;
    write_new(&run_dir.join(REPORT_FILE), &report.to_json()?)?;
    Ok((report, trace))
}

/// Writes a file of a run directory, and replaces the file that an earlier part of the same command has written.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let _ = fs::remove_file(path);
    run_dir::create(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The report that a run has left in its directory.
pub fn reported(run_dir: &Path) -> Result<Report> {
    let path = run_dir.join(REPORT_FILE);
    let text = run_dir::read_text(&path, MOST_REPORT)
        .with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
}

/// The ranks' own words in the run of a report; empty unless ranks crashed.
///
/// # Errors
/// When the trace cannot be read.
pub fn own_words(run_dir: &Path, report: &Report) -> Result<OwnWords> {
    if report.verdict != Verdict::Crashed {
        return Ok(OwnWords::default());
    }
    let dirs = trace_dirs(run_dir);
    let shown = report.repeats.as_ref().map_or(0, |repeats| repeats.shown);
    Ok(OwnWords::of(&Trace::read(&dirs[shown])?))
}

/// The result of an earlier search for the smallest configuration that still shows a finding of this run.
fn minimised(dir: &Path) -> Result<Option<Minimised>> {
    let path = dir.join(MINIMISED_FILE);
    match run_dir::read_text(&path, MOST_MINIMISED) {
        Ok(text) => Ok(Some(
            serde_json::from_str(&text)
                .with_context(|| format!("cannot understand {}", path.display()))?,
        )),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Reads a recorded trace, and removes its secrets.
fn read(dir: &Path) -> Result<Trace> {
    let mut trace = Trace::read(dir)?;
    secrets::of_run(dir, &trace)?
        .trace(&mut trace)
        .with_context(|| format!("cannot keep secrets out of {}", dir.display()))?;
    Ok(trace)
}

/// The report on the trace in a directory, or on the traces of all repeats.
fn of_traces(dirs: &[PathBuf]) -> Result<(Report, Trace)> {
    let first = read(&dirs[0])?;
    if dirs.len() == 1 {
        return Ok((diagnose::diagnose(&first), first));
    }
    let spec = first.spec.clone();
    let mut repeats = RepeatComparison::new(first);
    for dir in &dirs[1..] {
        let trace = read(dir)?;
        ensure!(
            trace.spec == spec,
            "{} is not a repeat of the run in {}: its settings differ; remove it",
            dir.display(),
            dirs[0].display(),
        );
        repeats.add(&trace);
    }
    let report = repeats.report();
    let shown = report.repeats.as_ref().map_or(0, |repeats| repeats.shown);
    Ok((report, read(&dirs[shown])?))
}
