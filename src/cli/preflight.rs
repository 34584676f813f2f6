//! `zprobe preflight`: two steps over every GPU of a job, a line for each machine, and an exit code.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zprobe_lab::console;
use zprobe_lab::native;
use zprobe_model::spec::settings::Placing;
use zprobe_model::spec::{BackendChoice, DeviceChoice, SpecRequest};
use zprobe_model::trace::Trace;
use zprobe_report::render::machines;
use zprobe_report::{Exit, Report};

use super::interpreter::Python;
use super::nodes::Nodes;
use super::output::write;
use super::{config, run};

/// Microbatches of the step: enough for an accumulator to hold something between them.
const MICROBATCHES: usize = 2;

/// Arguments of `zprobe preflight`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    placing: Placing,

    #[command(flatten)]
    python: Python,

    /// Directory for trace, logs and report [default: a new one under .zprobe/runs]
    #[arg(long, value_name = "DIR", env = "ZPROBE_OUT")]
    out: Option<PathBuf>,

    /// Also write report.json to this file
    #[arg(long, value_name = "FILE", env = "ZPROBE_EXPORT_JSON")]
    export_json: Option<PathBuf>,

    #[command(flatten)]
    config: config::Choice,

    #[command(flatten)]
    nodes: Nodes,
}

/// Takes the step, and says which machines took it as planned.
pub fn main(args: Args) -> Result<Exit> {
    let Args { placing, python, out, export_json, nodes, config: _ } = args;
    let run = run::Args::of(settings(placing.0), nodes, python, out)?;
    run.make(&|report: &Report, trace: &Trace, _: &Path| {
        console::print(&machines(report, trace)?)?;
        if let Some(path) = &export_json {
            write(path, &report.to_json()?)?;
        }
        Ok(report.exit())
    })
}

/// The settings of the step. A machine that has a driver is there for its GPUs: nothing that is missing is
/// made up for by the CPU, nor by ranks that share a GPU.
fn settings(placing: SpecRequest) -> SpecRequest {
    let has_driver = native::driver_is_there();
    let device = placing.device.or(has_driver.then_some(DeviceChoice::Cuda));
    let on_gpus = device == Some(DeviceChoice::Cuda);
    let backend = placing.backend.or(on_gpus.then_some(BackendChoice::Nccl));
    let gradient_accumulation_steps = Some(MICROBATCHES);
    SpecRequest { device, backend, gradient_accumulation_steps, ..placing }
}
