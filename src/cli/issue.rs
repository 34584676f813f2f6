//! `zprobe issue`: a bug report of a run, as an attachment.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bytesize::ByteSize;
use zprobe::attachment::{
    Attachment, Environment, MOST_ATTACHMENT, Project, Source, archive, kinds,
};
use zprobe::console::{print, say};
use zprobe::doctor::Python;
use zprobe::lab::limits::{examine, machine};
use zprobe::lab::recorded::diagnosis;
use zprobe::lab::store::newest;
use zprobe::redact::Private;
use zprobe::report::{Exit, Report};
use zprobe::spec::settings::size;
use zprobe::trace::trace_dirs;

use super::interpreter::inside;
use super::output::page;

/// Arguments of `zprobe issue`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory that `zprobe run` recorded [default: the newest under .zprobe/runs]
    run_dir: Option<PathBuf>,

    /// Project whose template for bugs the report follows [default: pytorch for ddp and fsdp2,
    /// deepspeed for deepspeed, plain for native]
    #[arg(long = "for", value_name = "PROJECT")]
    project: Option<Project>,

    /// The zip [default: zprobe-report-RUN.zip]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    force: bool,

    /// List what would be in it and what was taken out, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Size of the trace at the most, before compression
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16MB")]
    max_trace_size: ByteSize,

    /// Interpreter or virtual environment that the engine ran in: adds its versions, collect_env and ds_report
    #[arg(long, value_name = "PATH", env = "ZPROBE_PYTHON")]
    python: Option<PathBuf>,

    /// Seconds that the interpreter may take for each question
    #[arg(long, value_name = "SECS", default_value_t = 120, env = "ZPROBE_TIMEOUT")]
    timeout: u64,
}

pub fn main(args: &Args) -> Result<Exit> {
    let run_dir = args.run_dir.clone().map_or_else(|| newest(Path::new("")), Ok)?;
    let (report, _) = diagnosis(&run_dir)?;
    let shown = report.repeats.as_ref().map_or(0, |repeats| repeats.shown);
    let private = Private::here(fs::canonicalize(&run_dir).into_iter().collect());
    let environment = look(args, &report, &private)?;
    let attachment = Attachment::new(&Source {
        run_dir: &trace_dirs(&run_dir)[shown],
        report: &report,
        environment: &environment,
        private: &private,
        project: args.project,
        max_trace_size: args.max_trace_size.0,
        explain: page,
    })?;
    let zip = archive::zip(&attachment.entries)?;
    if zip.len() > MOST_ATTACHMENT {
        say(format_args!(
            "warning: {} bytes are more than GitHub takes as an attachment ({MOST_ATTACHMENT}); pass a \
             smaller --max-trace-size",
            zip.len(),
        ));
    }
    let summary = summary(&attachment, zip.len());
    if args.dry_run {
        print(&summary)?;
        return Ok(Exit::Clean);
    }
    let out = args.out.clone().unwrap_or_else(|| default_name(&run_dir));
    archive::write(&out, &zip, args.force)?;
    say(summary.trim_end());
    print(&format!("{}\n", out.display()))?;
    Ok(Exit::Clean)
}

/// Facts about the machine, and about the interpreter if one was named.
fn look(args: &Args, report: &Report, private: &Private) -> Result<Environment> {
    let Some(interpreter) = args.python.as_deref().map(inside) else {
        return Ok(Environment::new(&machine(None), None, report, private));
    };
    let patience = Duration::from_secs(args.timeout);
    let (machine, python) = examine(&interpreter, patience);
    let python: Python = python?;
    let mut environment = Environment::new(&machine, Some(&python), report, private);
    environment.ask_engines(&interpreter, &python, patience);
    Ok(environment)
}

/// Summary of an attachment: its files, its size, and what was taken out.
fn summary(attachment: &Attachment, size: usize) -> String {
    let width = attachment.entries.iter().map(|entry| entry.path.len()).max().unwrap_or(0);
    let mut text = String::new();
    for entry in &attachment.entries {
        let _ = writeln!(text, "{:>10}  {:width$}  {}", entry.text.len(), entry.path, entry.about);
    }
    let _ = writeln!(text, "{size:>10}  as a zip");
    let _ = writeln!(text, "taken out: {}", kinds(&attachment.redacted));
    text
}

/// A name in the working directory that tells of the run.
fn default_name(run_dir: &Path) -> PathBuf {
    let absolute = fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
    PathBuf::from(format!("zprobe-report-{name}.zip"))
}
