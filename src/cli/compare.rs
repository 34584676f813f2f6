//! `zprobe compare`: compares two runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use zprobe_lab::compare::render::render;
use zprobe_lab::compare::{Comparison, Side, made};
use zprobe_lab::console;
use zprobe_lab::order::Order;
use zprobe_lab::runs::find;
use zprobe_lab::store;
use zprobe_report::{Exit, Form};

use super::nodes::refuse_launcher;
use super::run;
use super::words::dashed;

/// The meaning of each exit code of a comparison, indexed by the code.
const EXIT_CODES: [&str; 5] = [
    "the same",
    "different",
    "usage or set-up error",
    "one of the runs crashed or hung",
    "one of the runs is inconclusive",
];

/// The arguments of `zprobe compare`.
#[derive(clap::Args)]
#[command(
    override_usage = "zprobe compare [OPTIONS] A B\n       \
                      zprobe compare [OPTIONS] --a FLAGS --b FLAGS [-- FLAGS OF BOTH]",
    after_long_help = Exit::help(EXIT_CODES)
)]
pub struct CompareArgs {
    /// Two recorded runs: each a directory, a report.json, the beginning of a name (`zprobe list runs`), latest or
    /// latest~N
    #[arg(value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["a", "b"])]
    runs: Vec<PathBuf>,

    /// Instead of recorded runs: flags of `zprobe run` for the first of two new runs
    #[arg(long, value_name = "FLAGS", requires = "b", allow_hyphen_values = true)]
    a: Option<String>,

    /// Flags of `zprobe run` for the second of two new runs
    #[arg(long, value_name = "FLAGS", requires = "a", allow_hyphen_values = true)]
    b: Option<String>,

    /// Flags of `zprobe run` for both new runs
    #[arg(last = true, value_name = "FLAGS", requires = "a")]
    both: Vec<String>,

    /// Directory for the two new runs, in `a` and `b` [default: a new one under .zprobe/compare]
    #[arg(long, value_name = "DIR", conflicts_with = "runs")]
    out: Option<PathBuf>,

    /// Form of the comparison on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        value_parser = Form::among(Form::OF_A_TABLE)
    )]
    output_format: Form,

    /// Exit with 0 even if the runs differ
    #[arg(long)]
    exit_zero: bool,
}

pub fn main(args: &CompareArgs) -> Result<Exit> {
    let here = Path::new("");
    let (a, b) = match (args.runs.as_slice(), &args.a, &args.b) {
        ([a, b], None, None) => {
            (Side::recorded(&find(here, Some(a))?)?, Side::recorded(&find(here, Some(b))?)?)
        }
        ([], Some(a), Some(b)) => {
            // The flags of both runs are parsed before the first run starts.
            let (one, two) = (order("--a", a, &args.both)?, order("--b", b, &args.both)?);
            let out = args.out.clone().map_or_else(|| store::place("compare"), Ok)?;
            made((a, &one), (b, &two), &out)?
        }
        _ => bail!(
            "nothing to compare: give two recorded runs (`zprobe compare latest~1 latest`), or --a and --b with the flags of two runs"
        ),
    };
    let comparison = Comparison::new(&a, &b);
    console::print(&render(&comparison, args.output_format)?)?;
    Ok(if args.exit_zero { Exit::Clean } else { comparison.exit() })
}

/// The order for one of the two runs: its own flags, followed by the flags for both.
fn order(name: &str, flags: &str, both: &[String]) -> Result<Order> {
    let said = || format!("{name} \"{flags}\"");
    let words = shlex::split(flags);
    let mut words = words.with_context(|| format!("{}: a quotation mark is not closed", said()))?;
    words.extend(both.iter().cloned());
    let words = dashed(words.into_iter().map(OsString::from));
    let args = run::RunArgs::parse(&words).with_context(said)?;
    ensure!(
        !args.has_out(),
        "{}: --out belongs to `zprobe compare`, not to one of its runs",
        said()
    );
    ensure!(
        !args.minimises(),
        "{}: --minimise works only with `zprobe run`; leave it out here",
        said()
    );
    refuse_launcher("compare")?;
    let order = args.order().with_context(said)?;
    order.refuse_what_cannot_run().with_context(said)?;
    Ok(order)
}
