//! `zprobe diagnose`: the same report again from a recorded run.

use std::path::PathBuf;

use anyhow::Result;
use zprobe::{diagnose, trace::Trace};

/// Arguments of `zprobe diagnose`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory that `zprobe run` recorded
    run_dir: PathBuf,

    #[command(flatten)]
    output: super::Output,
}

pub fn main(args: &Args) -> Result<u8> {
    let trace = Trace::read(&args.run_dir)?;
    args.output.hand_out(&diagnose::diagnose(&trace), &trace)
}
