//! `zprobe sweep`: one engine of one Python over a lattice of configurations.
//!
//! Every configuration is a `zprobe run` with the arguments that its row shows, over a pool: the
//! engine is imported once. The runs of a pool take place in a process of their own, the worker.

mod matrix;
mod plan;
mod run;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use zprobe::lattice::Part;
use zprobe::lattice::outcome::{Ending, Sweep};
use zprobe::report::suite::{self, Status};
use zprobe::spec::Engine;
use zprobe::spec::settings::Timeout;

use super::interpreter::{Chosen, Python};
use super::workers::Scratch;
use super::{console, verbosity};

/// Arguments of `zprobe sweep`.
#[derive(clap::Args)]
pub struct Args {
    /// Engine under test
    #[arg(long, default_value = "deepspeed")]
    engine: Engine,

    #[command(flatten)]
    python: Python,

    /// Instead of --python: an environment with these packages, which is made if it is not there
    #[arg(long, value_name = "NAME==VERSION")]
    package: Vec<String>,

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

    /// Instead of the covering design: this many configurations, drawn by chance from all axes
    #[arg(long, value_name = "N", conflicts_with_all = ["part", "full", "limit"])]
    random: Option<usize>,

    /// What the draw starts from
    #[arg(long, value_name = "N", default_value_t = 0, requires = "random")]
    seed: u64,

    /// At most this many configurations
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Start no run after so many seconds
    #[arg(long, value_name = "SECS")]
    time_limit: Option<u64>,

    /// Go on where an earlier sweep stopped: what it has said in JSON is not run again
    #[arg(long, value_name = "FILE", conflicts_with = "results")]
    resume: Option<PathBuf>,

    /// Optimizer steps of each run
    #[arg(long, value_name = "N", default_value_t = 2)]
    steps: usize,

    #[command(flatten)]
    timeout: Timeout,

    /// Pools side by side
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Run what is not clean once more, and say so if that comes out differently
    #[arg(long)]
    confirm: bool,

    /// Only list what would be run, and what is left out
    #[arg(long)]
    list: bool,

    /// Run nothing; make the table of what earlier sweeps have said in JSON
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "list")]
    results: Vec<PathBuf>,

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
    let sweeps = if args.results.is_empty() {
        let earlier = args.resume.as_ref().map(|path| earlier(path, args)).transpose()?;
        let plan = plan::Plan::new(args, earlier)?;
        if args.list {
            console::plain(&table::list(&plan, args.output_format)?)?;
            return Ok(0);
        }
        verbosity::say(plan.summary());
        vec![sweep(plan, args)?]
    } else {
        args.results.iter().map(|path| read(path)).collect::<Result<_>>()?
    };
    let text = match sweeps.as_slice() {
        [one] => table::table(one, args.output_format)?,
        many => matrix::table(many, args.output_format)?,
    };
    console::plain(&text)?;
    let rows = sweeps.iter().flat_map(|sweep| &sweep.rows);
    Ok(exit_code(rows.map(|row| row.outcome.ending)))
}

/// Runs what is planned.
fn sweep(plan: plan::Plan, args: &Args) -> Result<Sweep> {
    let python = match (args.package.as_slice(), args.python.named()) {
        ([], _) => args.python.choose(),
        (packages, None) => Chosen::provided(super::provision::interpreter(packages)?),
        (_, Some(_)) => {
            bail!("--package and --python both say which Python is meant; leave one of them out")
        }
    };
    python.must_have(args.engine)?;
    let scratch = Scratch::new(&super::store::place("sweep")?)?;
    let done = run::run_all(&plan, args, &python.path, scratch.path())?;
    let not_tried = plan.chosen.len() - done.rows.len();
    Ok(plan.sweep(args, done, not_tried))
}

/// An earlier sweep that this one can go on with.
fn earlier(path: &Path, args: &Args) -> Result<Sweep> {
    let earlier = read(path)?;
    ensure!(
        (earlier.engine, earlier.steps) == (args.engine, args.steps),
        "--resume {}: that sweep was of {} with {} steps; give the same --engine and --steps",
        path.display(),
        earlier.engine,
        earlier.steps,
    );
    Ok(earlier)
}

/// What an earlier sweep has said.
fn read(path: &Path) -> Result<Sweep> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is not what `zprobe sweep --output-format json` prints; make it anew",
            path.display()
        )
    })
}

/// That of the worst ending. A configuration that could not be run is like one that crashed.
fn exit_code(endings: impl Iterator<Item = Ending>) -> u8 {
    suite::exit_code(endings.map(|ending| match ending {
        Ending::Findings => Status::Failed,
        Ending::Crashed | Ending::NotRun => Status::Crashed,
        Ending::Inconclusive => Status::Inconclusive,
        Ending::Clean => Status::Passed,
        Ending::Skipped => Status::Skipped,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_weigh_more_than_crashes_and_these_more_than_doubt() {
        use Ending::{Clean, Crashed, Findings, Inconclusive, NotRun, Skipped};
        let code = |endings: &[Ending]| exit_code(endings.iter().copied());
        assert_eq!(code(&[Clean, Crashed, Findings, Inconclusive]), 1);
        assert_eq!(code(&[Inconclusive, Crashed, Clean]), 3);
        assert_eq!(code(&[NotRun, Clean]), 3);
        assert_eq!(code(&[Clean, Inconclusive]), 4);
        assert_eq!(code(&[Clean]), 0);
        assert_eq!(code(&[Clean, Skipped]), 0);
        assert_eq!(code(&[Skipped, Skipped]), 2, "nothing was run");
    }
}
