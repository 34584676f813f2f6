//! `zprobe list`: what there is.

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use zprobe::diagnose::rules::RULES;
use zprobe::spec::{Engine, Fault};

/// Arguments of `zprobe list`.
#[derive(clap::Args)]
pub struct Args {
    /// What to list
    what: What,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Rules, by code
    Rules,
    /// Faults for --inject
    Faults,
    /// Engines for --engine
    Engines,
}

pub fn main(args: &Args) -> Result<u8> {
    let lines = match args.what {
        What::Rules => RULES.iter().map(|rule| format!("{}  {}\n", rule.code, rule.name)).collect(),
        What::Faults => values::<Fault>(),
        What::Engines => values::<Engine>(),
    };
    super::print(&lines)?;
    Ok(0)
}

/// Names with their help, as the command line has them.
fn values<T: ValueEnum>() -> String {
    let values: Vec<_> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
    let width = values.iter().map(|value| value.get_name().len()).max().unwrap_or(0);
    let line = |value: &PossibleValue| {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        format!("{:width$}  {}\n", value.get_name(), help.replace('\n', " "))
    };
    values.iter().map(line).collect()
}
