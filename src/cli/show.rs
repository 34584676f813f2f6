//! `zprobe show`: prints the report of a recorded run again.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zprobe_lab::recorded::diagnosis;
use zprobe_lab::store::newest;
use zprobe_report::Exit;

use super::output::{Hints, Output};

/// The arguments of `zprobe show`.
#[derive(clap::Args)]
pub struct ShowArgs {
    /// Directory that `zprobe run` recorded [default: the newest under .zprobe/runs]
    run_dir: Option<PathBuf>,

    #[command(flatten)]
    output: Output,
}

pub fn main(args: &ShowArgs) -> Result<Exit> {
    let run_dir = args.run_dir.clone().map_or_else(|| newest(Path::new("")), Ok)?;
    let (report, trace) = diagnosis(&run_dir)?;
    args.output.hand_out(&report, &trace, &run_dir, &Hints::default())
}
