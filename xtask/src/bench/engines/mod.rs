//! How long it takes until zprobe has its verdict on a real engine, beside the script that shows the
//! same; and what observation costs a step of a large model.

mod overhead;
mod verdict;

use std::fmt;

use anyhow::{Context, Result, ensure};

use self::overhead::Overhead;
use self::verdict::Verdicts;
use super::Options;
use super::machine::Machine;
use super::scratch::Scratch;
use super::seed_script::SeedScript;
use crate::workspace;

/// Everything that was measured.
pub struct Report {
    command: String,
    machine: Machine,
    verdicts: Vec<Verdicts>,
    overheads: Vec<Overhead>,
}

/// Measures, with every Python that was given.
pub fn measure(options: &Options) -> Result<Report> {
    ensure!(options.runs > 0 && options.step_runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let file = options.seed_script.as_ref().context("--engines compares with --seed-script")?;
    let scripts = options
        .python
        .iter()
        .map(|python| SeedScript::for_cpu(file, python, &scratch))
        .collect::<Result<Vec<_>>>()?;
    let versions: Vec<&str> = scripts.iter().map(|script| script.versions.as_str()).collect();
    Ok(Report {
        command: options.command(),
        machine: Machine::this(Some(versions.join("; ")))?,
        verdicts: verdict::measure(&scripts, options.runs, &scratch)?,
        overheads: overhead::measure(&scripts, options.step_runs, &scratch)?,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        verdict::table(f, &self.verdicts)?;
        writeln!(f)?;
        overhead::table(f, &self.overheads)
    }
}
