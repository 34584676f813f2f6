//! `zprobe zoo`: runs each known bug on the released versions that have it, and on some that do not.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use zprobe_lab::console;
use zprobe_lab::zoo::{self, ZooOptions, rows, table};
use zprobe_model::spec::DeviceChoice;
use zprobe_report::{Exit, Form};

use super::nodes::refuse_launcher;
use super::run;

/// The arguments of `zprobe zoo`.
#[derive(clap::Args)]
pub struct ZooArgs {
    /// Known bugs to try, by name or as the path of your own TOML file [default: all of zprobe's]
    rows: Vec<String>,

    /// Only list the runs that would be made
    #[arg(long)]
    list: bool,

    /// Only releases with this version of a package: `0.18.9`, or `deepspeed==0.18.9`
    #[arg(long, value_name = "VERSION")]
    release: Vec<String>,

    /// Number of runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1, env = "ZPROBE_JOBS")]
    jobs: usize,

    /// Make every run on this device
    #[arg(long, value_name = "DEVICE", default_value = "cpu", env = "ZPROBE_DEVICE")]
    device: DeviceChoice,

    /// Stop at the first run that is not as expected, instead of trying all
    #[arg(long)]
    fail_fast: bool,

    /// Directory for the runs [default: a new one under .zprobe/zoo]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    /// Form of the table on standard output
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "full",
        value_parser = Form::among(Form::OF_A_TABLE),
        env = "ZPROBE_OUTPUT_FORMAT"
    )]
    output_format: Form,
}

pub fn main(args: &ZooArgs) -> Result<Exit> {
    refuse_launcher("zoo")?;
    ensure!(args.jobs > 0, "--jobs 0: must be at least 1");
    let rows = rows::chosen(&args.rows)?;
    let cases = rows::cases(&rows, &args.release)?;
    if args.list {
        console::plain(&table::list(&cases, args.output_format)?)?;
        return Ok(Exit::Clean);
    }
    let runs = ZooOptions { jobs: args.jobs, fail_fast: args.fail_fast };
    let device = ["--device", args.device.name()].map(str::to_owned);
    let order = |arguments: &[String]| run::order(&[arguments, &device].concat());
    let outcomes = zoo::outcomes(&cases, runs, args.out.clone(), &order)?;
    console::plain(&table::outcomes(&cases, &outcomes, args.output_format)?)?;
    zoo::exit(&outcomes)
}
