//! `zprobe zoo`: known bugs of real releases, tried on the releases that have them and on releases that do not.

mod environments;
pub mod rows;
mod run;
pub mod table;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use self::rows::ZooCase;
pub use self::run::{ZooOptions, ZooOutcome};
use super::order::ParseOrder;
use super::store;
use crate::console::say_recorded;
use crate::environment::Cache;
use zprobe_model::run_dir::Claim;
use zprobe_report::{Exit, Verdict};

/// Tries all cases, in `out` or a new directory, and returns their outcomes in the same order.
pub fn outcomes(
    cases: &[ZooCase<'_>],
    runs: ZooOptions,
    out: Option<PathBuf>,
    read: &ParseOrder<'_>,
) -> Result<Vec<ZooOutcome>> {
    let out = out.map_or_else(|| store::place("zoo"), Ok)?;
    Claim::new(&out)?.keep();
    let _lock = store::held(&out)?;
    let environments = environments::provide(&Cache::locate()?, cases);
    let outcomes = runs.all(cases, &environments, &out, read)?;
    say_recorded(&out);
    Ok(outcomes)
}

/// The exit code of an experiment with these outcomes.
pub fn exit(outcomes: &[ZooOutcome]) -> Result<Exit> {
    ensure!(
        outcomes.iter().any(|outcome| outcome.skipped.is_none()),
        "nothing ran: no chosen row can be run here; the reasons are above"
    );
    Ok(Verdict::worst(outcomes.iter().map(ZooOutcome::verdict)).map_or(Exit::Clean, Exit::from))
}
