//! `zprobe list`: the probes, known bugs, rules, faults, engines and shapes that there are.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use zprobe::console;
use zprobe::diagnose::rules::RULES;
use zprobe::lab::check::probe;
use zprobe::lab::limits::examine;
use zprobe::report::Exit;
use zprobe::spec::{Engine, Fault, Shape};
use zprobe::zoo;

use super::doctor::engine_lines;
use super::interpreter::inside;

/// Time that an interpreter may take to try the engines.
const TRY_LIMIT: Duration = Duration::from_secs(120);

/// Arguments of `zprobe list`.
#[derive(clap::Args)]
pub struct Args {
    /// Kind of things to list
    what: What,

    /// With `engines`: interpreter or virtual environment to try them with, and say which can run
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// The standard suite of `zprobe check`
    Probes,
    /// Known bugs for `zprobe zoo`
    Zoo,
    /// Rules, by code
    Rules,
    /// Faults for --inject
    Faults,
    /// Engines for --engine
    Engines,
    /// Shapes for --shape
    Shapes,
}

pub fn main(args: &Args) -> Result<Exit> {
    ensure!(
        args.python.is_none() || matches!(args.what, What::Engines),
        "--python: only `zprobe list engines` tries an interpreter",
    );
    let lines = match args.what {
        What::Rules => RULES.iter().map(|rule| format!("{}  {}\n", rule.code, rule.name)).collect(),
        What::Faults => values::<Fault>(),
        What::Shapes => named(
            Shape::ALL
                .iter()
                .map(|shape| (shape.name().to_owned(), shape.describe().to_owned()))
                .collect(),
        ),
        What::Engines => match &args.python {
            Some(python) => tried(python)?,
            None => values::<Engine>(),
        },
        What::Probes => named(
            probe::registry::probes()?
                .into_iter()
                .map(|probe| {
                    let engines: Vec<&str> = probe.engines.iter().map(|it| it.name()).collect();
                    (probe.name, format!("{} ({})", probe.description, engines.join(", ")))
                })
                .collect(),
        ),
        What::Zoo => {
            let rows = zoo::registry::rows().iter();
            named(rows.map(|row| (row.name.clone(), row.title.clone())).collect())
        }
    };
    console::print(&lines)?;
    Ok(Exit::Clean)
}

/// Lines that say of each engine whether it can run with this interpreter, and if not, why.
fn tried(python: &Path) -> Result<String> {
    let (machine, python) = examine(&inside(python), TRY_LIMIT)?;
    let mut text = String::new();
    engine_lines(&mut text, &machine, &python);
    Ok(text)
}

/// Names with their help, as the command line has them.
fn values<T: ValueEnum>() -> String {
    let values = T::value_variants().iter().filter_map(T::to_possible_value);
    let pairs = values.map(|value| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        (value.get_name().to_owned(), help.replace('\n', " "))
    });
    named(pairs.collect())
}

/// Names with what they stand for, in two columns.
fn named(pairs: Vec<(String, String)>) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs.into_iter().map(|(name, text)| format!("{name:width$}  {text}\n")).collect()
}
