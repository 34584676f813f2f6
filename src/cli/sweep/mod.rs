//! `zprobe sweep`: one engine of one Python over a lattice of configurations.
//!
//! Every configuration is a `zprobe run` with the arguments that its row shows, over a pool: the
//! engine is imported once. The runs of a pool take place in a process of their own, the worker.

mod plan;
mod pooled;
mod run;
mod table;
pub mod worker;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use zprobe::lattice::Part;
use zprobe::lattice::outcome::Ending;
use zprobe::spec::Engine;

/// Arguments of `zprobe sweep`.
#[derive(clap::Args)]
pub struct Args {
    /// Engine under test
    #[arg(long)]
    engine: Engine,

    /// Python interpreter that has it
    #[arg(long, value_name = "PATH", default_value = "python3", env = "ZPROBE_PYTHON")]
    python: PathBuf,

    /// Only configurations whose words or arguments contain this; several narrow it down
    #[arg(long, value_name = "SUBSTRING")]
    filter: Vec<String>,

    /// Only these ZeRO stages
    #[arg(long, value_name = "0|1|2|3")]
    stage: Vec<u8>,

    /// Only these parts of the design
    #[arg(long, value_name = "PART")]
    part: Vec<Part>,

    /// The whole product of a smaller grid, instead of the covering design
    #[arg(long, conflicts_with = "part")]
    full: bool,

    /// At most this many configurations
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Start no run after so many seconds
    #[arg(long, value_name = "SECS")]
    time_limit: Option<u64>,

    /// Optimizer steps of each run
    #[arg(long, value_name = "N", default_value_t = 2)]
    steps: usize,

    /// Seconds of silence after which a rank counts as hung
    #[arg(long, value_name = "SECS", default_value_t = 60, env = "ZPROBE_TIMEOUT")]
    timeout: u64,

    /// Pools side by side
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Only list what would be run, and what is left out
    #[arg(long)]
    list: bool,

    /// Keep the run directories of what is not clean in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Form of the table on standard output
    #[arg(long, value_name = "FORMAT", default_value = "full", env = "ZPROBE_OUTPUT_FORMAT")]
    output_format: Form,
}

/// Form of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table for people
    Full,
    /// Every row, for programs
    Json,
    /// A table for the documentation
    Markdown,
}

pub fn main(args: &Args) -> Result<u8> {
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    let plan = plan::Plan::new(args)?;
    if args.list {
        super::print(&table::list(&plan, args.output_format)?)?;
        return Ok(0);
    }
    anstream::eprintln!("{}", plan.summary());
    let scratch =
        Scratch(std::path::absolute(Path::new(".zprobe/sweep").join(super::run::run_id()))?);
    std::fs::create_dir_all(&scratch.0)
        .with_context(|| format!("cannot create {}", scratch.0.display()))?;
    let results = run::run_all(&plan, args, &scratch.0)?;
    super::print(&table::results(&plan, &results, args)?)?;
    Ok(exit_code(results.iter().map(|result| result.outcome.ending)))
}

/// A directory that is gone when this is.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// That of the worst ending. A configuration that could not be run is like one that crashed.
fn exit_code(endings: impl Iterator<Item = Ending>) -> u8 {
    let (rank, code) = endings
        .map(|ending| match ending {
            Ending::Findings => (3, 1),
            Ending::Crashed | Ending::NotRun => (2, 3),
            Ending::Inconclusive => (1, 4),
            Ending::Clean => (0, 0),
        })
        .max()
        .unwrap_or((0, 0));
    let _: u8 = rank;
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_weigh_more_than_crashes_and_these_more_than_doubt() {
        use Ending::{Clean, Crashed, Findings, Inconclusive, NotRun};
        let code = |endings: &[Ending]| exit_code(endings.iter().copied());
        assert_eq!(code(&[Clean, Crashed, Findings, Inconclusive]), 1);
        assert_eq!(code(&[Inconclusive, Crashed, Clean]), 3);
        assert_eq!(code(&[NotRun, Clean]), 3);
        assert_eq!(code(&[Clean, Inconclusive]), 4);
        assert_eq!(code(&[Clean]), 0);
    }
}
