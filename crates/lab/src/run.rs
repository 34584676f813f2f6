//! Makes a single run: from an order to a trace and the report on it.

use std::path::Path;

use anyhow::{Result, ensure};

use super::order::Order;
use super::queue::Queue;
use super::recorded::report;
use super::repeat;
use super::runner::{Runner, warn_of_survivors};
use super::runs::typed;
use super::store::claimed;
use crate::console::RankProgress;
use zprobe_launch::agents::Team;
use zprobe_launch::exec::{self, ScriptEnd};
use zprobe_model::trace::{Record, Trace, is_recorded};
use zprobe_report::Report;

/// Makes a run, or all its repeats, in `run_dir`, and makes the report. The ranks are started by this process, and by
/// the agents that it leads if there are any.
///
/// # Errors
/// When this machine cannot make the run, no rank could be started, or `run_dir` cannot be used.
pub fn record(
    order: &Order,
    run_id: &str,
    run_dir: &Path,
    team: Option<&mut Team>,
) -> Result<(Report, Trace)> {
    refuse_recorded(run_dir)?;
    order.refuse_what_cannot_run()?;
    claimed(run_dir, &typed(Some(&order.spec)), || {
        let mut runner = Runner::new(order, run_dir, team)?;
        if order.repeats == 1 {
            let mut progress = RankProgress::new(&order.spec, run_dir);
            runner.run(&order.spec, run_id, run_dir, None, &mut |record| progress.see(record))?;
        } else {
            repeat::all(&mut runner, order, run_id, run_dir, &Queue::new(order.repeats)?)?;
        }
        report(run_dir)
    })
}

/// Runs a user's script and watches it, together with the agents that this process leads if there are any, and leaves
/// the trace in `run_dir`. `is_complete` is called when every rank has finished.
///
/// # Errors
/// When the command does not start, or `run_dir` cannot be used.
pub fn record_script(
    order: &exec::ExecRequest,
    run_id: &str,
    run_dir: &Path,
    team: Option<&mut Team>,
    is_complete: &mut dyn FnMut(),
) -> Result<ScriptEnd> {
    refuse_recorded(run_dir)?;
    claimed(run_dir, &typed(Some(&order.spec())), || {
        let mut progress = RankProgress::of_script(&order.spec());
        let mut observer = |record: &Record| progress.see(record);
        let over = exec::record(order, run_id, run_dir, team, &mut observer, is_complete)?;
        warn_of_survivors(&over.ended);
        Ok(over)
    })
}

fn refuse_recorded(run_dir: &Path) -> Result<()> {
    ensure!(
        !is_recorded(run_dir),
        "{} holds a recorded run already; choose another directory with --out, or remove the run with \
         `zprobe clean`",
        run_dir.display(),
    );
    Ok(())
}
