//! `zprobe show`: prints the report of a recorded run again.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zprobe_lab::check::checked;
use zprobe_lab::recorded::diagnosis;
use zprobe_lab::runs::{find, typed_python};
use zprobe_report::Exit;

use super::interpreter::EventsPython;
use super::output::{Hints, Output};

/// The arguments of `zprobe show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// Recorded run: its directory, the beginning of its name (`zprobe list runs`), latest or latest~N; or the directory
    /// of a check [default: latest]
    #[arg(value_name = "RUN")]
    run_dir: Option<PathBuf>,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    python: EventsPython,
}

pub fn main(args: &ShowArgs) -> Result<Exit> {
    let python = args.python.python();
    args.output.refuse_unwritable(&python)?;
    if let Some(suite) = args.run_dir.as_deref().map(checked).transpose()?.flatten() {
        return args.output.hand_out_suite(&suite);
    }
    let run_dir = find(Path::new(""), args.run_dir.as_deref())?;
    let (report, trace) = diagnosis(&run_dir)?;
    // The settings of the run do not have the user's Python.
    let again = typed_python(&run_dir)
        .zip(report.run.command.as_ref())
        .map(|(python, command)| format!("{command} --python {python}"));
    args.output.hand_out(&report, &trace, &run_dir, &python, &Hints { again, ..Hints::default() })
}
