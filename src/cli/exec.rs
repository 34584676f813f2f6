//! `zprobe exec`: the user's own training script, from its command to a report.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::builder::BoolishValueParser;
use zprobe::console::say;
use zprobe::exec::Order;
use zprobe::lab::store::{self, run_id};
use zprobe::lab::{recorded, run};
use zprobe::report::Exit;
use zprobe::spec::Weighting;
use zprobe::trace::Outcome;

use super::output::Output;

/// Arguments of `zprobe exec`.
#[derive(clap::Args)]
#[command(next_line_help = false)]
pub struct Args {
    /// The command that starts the training, as it is written without zprobe
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// Take no optimizer step: parameters stay as they are
    #[arg(long, env = "ZPROBE_DRY", value_parser = BoolishValueParser::new())]
    dry: bool,

    /// Demand a law of the weights of target tokens: a finding where another one holds
    #[arg(long, value_name = "LAW", default_value = "any", env = "ZPROBE_WEIGHTING")]
    weighting: Weighting,

    /// Seed of the codes
    #[arg(long, value_name = "N", default_value_t = 0, env = "ZPROBE_SEED")]
    seed: u64,

    /// Seconds without a backward or a step after which the script counts as hung
    #[arg(long, value_name = "SECS", default_value_t = 600, env = "ZPROBE_TIMEOUT")]
    timeout: u64,

    /// Directory for trace and report [default: a new one under .zprobe/runs]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    #[command(flatten)]
    config: super::config::Choice,

    #[command(flatten)]
    output: Output,
}

pub fn main(args: &Args) -> Result<Exit> {
    ensure!(args.timeout > 0, "--timeout 0: must be at least 1");
    let run_id = run_id();
    let run_dir = args.out.clone().unwrap_or_else(|| Path::new(store::RUNS).join(&run_id));
    let order = Order {
        command: args.command.clone(),
        dry: args.dry,
        weighting: args.weighting,
        seed: args.seed,
        timeout_s: args.timeout,
    };
    if let Some(reason) = run::record_script(&order, &run_id, &run_dir)? {
        say(format_args!("inconclusive: {reason}"));
        return Ok(match reason.outcome() {
            Some(Outcome::Code(code @ 1..=255)) => Exit::OfCommand(code as u8),
            _ => Exit::Inconclusive,
        });
    }
    let (report, trace) = recorded::report(&run_dir)?;
    say(format_args!("recorded in {}", run_dir.display()));
    args.output.hand_out(&report, &trace)
}
