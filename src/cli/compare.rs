//! `zprobe compare`: two runs side by side.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use zprobe::compare::render::{Form, render};
use zprobe::compare::{Comparison, Side};
use zprobe::report::Report;

use super::diagnose::diagnosis;
use super::limits::CANNOT_RUN;
use super::run::{self, run_id};
use super::verbosity;

/// Arguments of `zprobe compare`.
#[derive(clap::Args)]
#[command(
    override_usage = "zprobe compare [OPTIONS] A B\n       \
                      zprobe compare [OPTIONS] --a FLAGS --b FLAGS [-- FLAGS OF BOTH]",
    after_help = "Exit codes:\n  0  the same\n  1  different\n  2  usage or set-up error\n  \
                  3  one of the runs crashed or hung\n  4  one of the runs is inconclusive"
)]
pub struct Args {
    /// Two run directories, or two files that hold their report.json
    #[arg(value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["a", "b"])]
    runs: Vec<PathBuf>,

    /// Flags of `zprobe run` for the first of two runs that are made now
    #[arg(long, value_name = "FLAGS", requires = "b", allow_hyphen_values = true)]
    a: Option<String>,

    /// Flags of `zprobe run` for the second
    #[arg(long, value_name = "FLAGS", requires = "a", allow_hyphen_values = true)]
    b: Option<String>,

    /// Flags of both
    #[arg(last = true, value_name = "FLAGS", requires = "a")]
    both: Vec<String>,

    /// Directory for the two runs, in `a` and `b` [default: a new one under .zprobe/compare]
    #[arg(long, value_name = "DIR", conflicts_with = "runs")]
    out: Option<PathBuf>,

    /// Form of the comparison on standard output
    #[arg(long, value_name = "FORMAT", default_value = "full")]
    output_format: Form,

    /// Exit with 0 even if they differ
    #[arg(long)]
    exit_zero: bool,
}

pub fn main(args: &Args) -> Result<u8> {
    let (a, b) = match (args.runs.as_slice(), &args.a, &args.b) {
        ([a, b], None, None) => (recorded(a)?, recorded(b)?),
        ([], Some(a), Some(b)) => made(args, a, b)?,
        _ => bail!(
            "nothing to compare: give two run directories, or --a and --b with the flags of two runs"
        ),
    };
    let comparison = Comparison::new(&a, &b);
    super::print(&render(&comparison, args.output_format)?)?;
    Ok(if args.exit_zero { 0 } else { comparison.exit_code() })
}

/// A recorded run, or a report alone.
fn recorded(path: &Path) -> Result<Side> {
    let name = path.display().to_string();
    if path.is_dir() {
        let (report, trace) = diagnosis(path)?;
        return Ok(Side { name, report, trace: Some(trace) });
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let report: Report = serde_json::from_str(&text).with_context(|| {
        format!("{name} is no report.json; give a run directory or the report.json of one")
    })?;
    Ok(Side { name, report, trace: None })
}

/// Makes both runs.
fn made(args: &Args, a: &str, b: &str) -> Result<(Side, Side)> {
    // Both are understood before one of them is run.
    let (first, second) = (parsed("--a", a, &args.both)?, parsed("--b", b, &args.both)?);
    let out = args.out.clone().map_or_else(|| super::store::place("compare"), Ok)?;
    let side = |flags: &str, run: &run::Args, name: &str| {
        let dir = out.join(name);
        let (report, trace) = run::record(run, &format!("{}-{name}", run_id()), &dir)?;
        let name = if flags.is_empty() { name.to_owned() } else { flags.to_owned() };
        Ok::<_, anyhow::Error>(Side { name, report, trace: Some(trace) })
    };
    let sides = (side(a, &first, "a")?, side(b, &second, "b")?);
    verbosity::say(format_args!("recorded in {}", out.display()));
    for (name, side) in [("--a", &sides.0), ("--b", &sides.1)] {
        if let Some(reason) = side.report.limit() {
            bail!("{name} \"{}\": {CANNOT_RUN}: {reason}; nothing was compared", side.name);
        }
    }
    Ok(sides)
}

/// The flags of one run, with those of both.
fn parsed(name: &str, flags: &str, both: &[String]) -> Result<run::Args> {
    let said = || format!("{name} \"{flags}\"");
    let words = shlex::split(flags);
    let mut words = words.with_context(|| format!("{}: a quotation does not end", said()))?;
    words.extend(both.iter().cloned());
    let words: Vec<OsString> =
        words.into_iter().map(OsString::from).scan(true, super::dashed).collect();
    let args = run::Args::parse(&words).with_context(said)?;
    ensure!(!args.has_out(), "{}: --out is for `zprobe compare` itself", said());
    ensure!(
        !args.minimise().wanted(),
        "{}: --minimise is for `zprobe run`; nothing is minimised here",
        said()
    );
    let cuda = args.look_for_gpus()?;
    let spec = args.spec(cuda.as_ref().map(|cuda| &cuda.gpus)).with_context(said)?;
    args.refuse_what_cannot_run(&spec).with_context(said)?;
    Ok(args)
}
