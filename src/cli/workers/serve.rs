//! `zprobe pool-worker`: runs what standard input names, one after the other, over one pool.
//!
//! It is a process of its own because the runs of a process take place one after the other. It ends
//! when standard input does: when whoever started it is gone, too.

use std::io::BufRead as _;
use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use zprobe::spec::Engine;

use super::pooled::Pooled;
use crate::cli::{console, run};

/// Arguments of `zprobe pool-worker`.
#[derive(clap::Args)]
pub struct Args {
    /// Engine that every run has
    #[arg(long)]
    engine: Engine,

    /// Python interpreter that has it
    #[arg(long, value_name = "PATH")]
    python: PathBuf,

    /// Directory for the pool
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// A line of standard input: a run to make.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// Identifies the run.
    pub run_id: String,
    /// Its directory.
    pub dir: PathBuf,
    /// What follows `zprobe run`.
    pub arguments: Vec<String>,
}

/// A line of standard output, for each line of standard input: the report is in the run directory,
/// or there is none.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Why there is none.
    pub error: Option<String>,
}

pub fn main(args: &Args) -> Result<u8> {
    let mut pooled = Pooled::new(args.engine, &args.python, &args.dir)?;
    for line in std::io::stdin().lock().lines() {
        let task: Task = serde_json::from_str(&line?)?;
        let error = run(&mut pooled, &task).err().map(|error| format!("{error:#}"));
        console::answer(&serde_json::to_string(&Reply { error })?)?;
    }
    Ok(0)
}

/// Makes a run and leaves its report in its directory.
fn run(pooled: &mut Pooled, task: &Task) -> Result<()> {
    let spec = run::Args::parse(&task.arguments)?.spec(None)?;
    run::claimed(&task.dir, || {
        pooled.run(&spec, &task.run_id, &task.dir, &mut |_| {})?;
        run::report(&task.dir).map(drop)
    })
}
