//! Time until zprobe has its verdict on a real engine, compared with the script that shows the same bug; and
//! the cost of observation for a step of a large model.

mod verdict;

use std::fmt;

use anyhow::{Context, Result, ensure};

use self::verdict::Verdicts;
use super::Options;
use super::machine::Machine;
use super::overhead::{self, Overhead};
use super::report;
use super::scratch::Scratch;
use super::seed_script::SeedScript;
use crate::workspace;

/// DeepSpeed is measured with every Python.
const DEEPSPEED: (&str, &[&str]) =
    ("deepspeed, stage 1", &["--engine", "deepspeed", "--stage", "1"]);

/// The engines that are measured with the last Python only.
const OTHERS: [(&str, &[&str]); 2] =
    [("ddp", &["--engine", "ddp"]), ("fsdp2", &["--engine", "fsdp2"])];

/// All measurements of real engines.
pub struct Report {
    command: String,
    machine: Machine,
    verdicts: Vec<Verdicts>,
    overheads: Vec<Overhead>,
}

/// Measures with every Python of `--python`.
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
    let verdicts = verdict::measure(&scripts, options.runs, &scratch)?;
    let mut overheads: Vec<Overhead> =
        scripts.iter().map(|script| unmeasured(DEEPSPEED, script)).collect();
    if let Some(last) = scripts.last() {
        overheads.extend(OTHERS.map(|engine| unmeasured(engine, last)));
    }
    overhead::measure(&mut overheads, options.step_runs, &scratch)?;
    Ok(Report {
        command: options.command(),
        machine: Machine::this(Some(versions.join("; ")))?,
        verdicts,
        overheads,
    })
}

fn unmeasured((name, words): (&str, &'static [&'static str]), script: &SeedScript) -> Overhead {
    Overhead::of(format!("{name} ({})", script.versions), words, Some(script.python()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        verdict::table(f, &self.verdicts)?;
        writeln!(f)?;
        let rows: Vec<Vec<String>> = self.overheads.iter().map(Overhead::row).collect();
        report::table(f, &overhead::HEAD, &rows)
    }
}
