//! `zprobe explain`: a rule's documentation.

use anyhow::{Result, bail};
use zprobe::diagnose::rules;

/// Arguments of `zprobe explain`.
#[derive(clap::Args)]
pub struct Args {
    /// Code of the rule, for example ZP101
    code: String,
}

pub fn main(args: &Args) -> Result<u8> {
    let Some(rule) = rules::find(&args.code) else {
        bail!("{}: no such rule; `zprobe list rules` lists them", args.code);
    };
    super::print(rule.doc)?;
    Ok(0)
}
