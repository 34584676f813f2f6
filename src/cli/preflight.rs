//! `zprobe preflight`: takes two steps on every GPU of a job, and prints one line for each machine.

use std::path::{Path, PathBuf};

use anyhow::Result;
use zprobe_lab::console;
use zprobe_lab::native;
use zprobe_model::spec::settings::Placing;
use zprobe_model::spec::{BackendChoice, DeviceChoice, SpecRequest};
use zprobe_model::trace::Trace;
use zprobe_report::render::machines;
use zprobe_report::{Exit, Report, Verdict};

use super::interpreter::Python;
use super::nodes::Nodes;
use super::output::{is_stdout, refuse_unwritable, write};
use super::{config, run};

/// The microbatches of each step: two, so that gradients are accumulated.
const MICROBATCHES: usize = 2;

/// The arguments of `zprobe preflight`.
#[derive(clap::Args)]
pub struct PreflightArgs {
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

/// Makes the run, and prints one line for each machine and the verdict.
pub fn main(args: PreflightArgs) -> Result<Exit> {
    let PreflightArgs { placing, python, out, export_json, nodes, config: _ } = args;
    refuse_unwritable([("--export-json", export_json.as_deref())])?;
    let fell_back = placing.0.device.is_none() && !native::driver_is_there();
    let run = run::RunArgs::of(settings(placing.0), nodes, python, out)?;
    run.make(&|report: &Report, trace: &Trace, _: &Path| {
        let mut report = report.clone();
        if fell_back {
            doubt(&mut report);
        }
        let text = machines(&report, trace)?;
        if export_json.as_deref().is_some_and(is_stdout) {
            console::say(text.trim_end());
        } else {
            console::print(&text)?;
        }
        if let Some(path) = &export_json {
            write(path, &report.to_json()?)?;
        }
        Ok(report.exit())
    })
}

/// The settings of the run. On a machine with a GPU driver the run must use the GPUs and NCCL: it neither falls back
/// to the CPU nor lets ranks share a GPU.
fn settings(placing: SpecRequest) -> SpecRequest {
    let has_driver = native::driver_is_there();
    let device = placing.device.or(has_driver.then_some(DeviceChoice::Cuda));
    let on_gpus = device == Some(DeviceChoice::Cuda);
    let backend = placing.backend.or(on_gpus.then_some(BackendChoice::Nccl));
    let gradient_accumulation_steps = Some(MICROBATCHES);
    SpecRequest { device, backend, gradient_accumulation_steps, ..placing }
}

/// Makes a clean report inconclusive, because the ranks ran on the CPU and nobody asked for that: a job that needs GPUs
/// must not start on a node without a driver.
fn doubt(report: &mut Report) {
    if report.verdict == Verdict::Clean {
        report.verdict = Verdict::Inconclusive;
        report.not_exercised.push(
            "GPUs: this machine has no GPU driver, so the ranks ran on the CPU; --device cpu asks for a check of the \
             CPU alone"
                .to_owned(),
        );
    }
}
