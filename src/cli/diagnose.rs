//! `zprobe diagnose`: the same report again from a recorded run.

use std::path::PathBuf;

use anyhow::Result;
use zprobe::lab::recorded::diagnosis;
use zprobe::report::Exit;

use super::output::Output;

/// Arguments of `zprobe diagnose`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory that `zprobe run` recorded
    run_dir: PathBuf,

    #[command(flatten)]
    output: Output,
}

pub fn main(args: &Args) -> Result<Exit> {
    let (report, trace) = diagnosis(&args.run_dir)?;
    args.output.hand_out(&report, &trace)
}
