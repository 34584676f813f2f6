//! `zprobe pool-worker`: a process that makes runs for another zprobe.

use std::path::PathBuf;

use anyhow::Result;
use zprobe_lab::worker::serve;
use zprobe_report::Exit;

/// The arguments of `zprobe pool-worker`.
#[derive(clap::Args)]
pub struct WorkerArgs {
    /// Directory for the files of the worker's pools
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub fn main(args: &WorkerArgs) -> Result<Exit> {
    serve(&args.dir)?;
    Ok(Exit::Clean)
}
