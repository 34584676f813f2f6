//! `zprobe show`: prints the report of a recorded run again.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zprobe_lab::recorded::diagnosis;
use zprobe_lab::runs::find;
use zprobe_report::Exit;

use super::interpreter::Python;
use super::output::{Hints, Output};

/// The arguments of `zprobe show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// Recorded run: its directory, the beginning of its name (`zprobe list runs`), latest or latest~N [default: latest]
    #[arg(value_name = "RUN")]
    run_dir: Option<PathBuf>,

    #[command(flatten)]
    output: Output,
}

pub fn main(args: &ShowArgs) -> Result<Exit> {
    let python = Python::without_flag();
    args.output.refuse_unwritable(&python)?;
    let run_dir = find(Path::new(""), args.run_dir.as_deref())?;
    let (report, trace) = diagnosis(&run_dir)?;
    args.output.hand_out(&report, &trace, &run_dir, &python, &Hints::default())
}
