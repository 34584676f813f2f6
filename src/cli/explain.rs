//! `zprobe explain`: a rule's documentation.

use anyhow::{Result, bail};
use zprobe::console;
use zprobe::diagnose::rules;
use zprobe::report::Exit;

/// Arguments of `zprobe explain`.
#[derive(clap::Args)]
pub struct Args {
    /// Code of the rule, for example ZP101
    code: String,
}

pub fn main(args: &Args) -> Result<Exit> {
    let Some(rule) = rules::find(&args.code) else {
        bail!("{}: no such rule; `zprobe list rules` lists them", args.code);
    };
    console::print(rule.doc)?;
    Ok(Exit::Clean)
}
