//! `zprobe list`: what there is.

use anyhow::Result;
use clap::ValueEnum;
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
    match args.what {
        What::Rules => {
            for rule in RULES {
                anstream::println!("{}  {}", rule.code, rule.name);
            }
        }
        What::Faults => values::<Fault>(),
        What::Engines => values::<Engine>(),
    }
    Ok(0)
}

/// Names with their help, as the command line has them.
fn values<T: ValueEnum>() {
    let values: Vec<_> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
    let width = values.iter().map(|value| value.get_name().len()).max().unwrap_or(0);
    for value in &values {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        anstream::println!("{:width$}  {}", value.get_name(), help.replace('\n', " "));
    }
}
