//! `zprobe zoo`: known bugs of real releases, each tried on the releases that have it and on those
//! that do not.

mod environments;
mod rows;
mod run;
mod table;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use zprobe::environment::Cache;
use zprobe::run_dir::Claim;

use super::{console, verbosity};

/// Arguments of `zprobe zoo`.
#[derive(clap::Args)]
pub struct Args {
    /// Rows to try, by name or as a path of a TOML file of your own [default: all of zprobe's]
    rows: Vec<String>,

    /// Only list what would be tried
    #[arg(long)]
    list: bool,

    /// Only releases with this version of a package: `0.18.9`, or `deepspeed==0.18.9`
    #[arg(long, value_name = "VERSION")]
    release: Vec<String>,

    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Stop at the first run that is not as expected, instead of trying all
    #[arg(long)]
    fail_fast: bool,

    /// Directory for the runs [default: a new one under .zprobe/zoo]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    /// Form of the table on standard output
    #[arg(long, value_name = "FORMAT", default_value = "full", env = "ZPROBE_OUTPUT_FORMAT")]
    output_format: Form,
}

/// Form of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table for people
    Full,
    /// An array, for programs
    Json,
    /// A table and the story of each bug, for docs/zoo.md
    Markdown,
}

pub fn main(args: &Args) -> Result<u8> {
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    let rows = rows::chosen(&args.rows)?;
    let cases = rows::cases(&rows, &args.release)?;
    if args.list {
        console::plain(&table::list(&cases, args.output_format)?)?;
        return Ok(0);
    }

    let out = args.out.clone().map_or_else(|| super::store::place("zoo"), Ok)?;
    Claim::new(&out)?.keep();
    let progress = verbosity::lines();
    let environments = environments::provide(&Cache::locate()?, &cases, &progress);
    let outcomes = run::run_all(&cases, &environments, &out, args, &progress)?;
    verbosity::say(format_args!("recorded in {}", out.display()));
    console::plain(&table::outcomes(&cases, &outcomes, args.output_format)?)?;
    ensure!(
        outcomes.iter().any(|outcome| outcome.skipped.is_none()),
        "nothing ran: no chosen row can be run here; the reasons are above"
    );
    Ok(u8::from(outcomes.iter().any(run::Outcome::is_bad)))
}
