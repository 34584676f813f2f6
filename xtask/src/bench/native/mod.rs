//! The native engine by itself: its steps compared with those of real engines, runs over warm ranks, and many
//! ranks on one machine.

mod many_ranks;
mod warm;

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use self::many_ranks::ManyRanks;
use self::warm::Warm;
use super::Options;
use super::machine::Machine;
use super::overhead::{self, Overhead};
use super::report::{ratio, table};
use super::scratch::Scratch;
use super::seed_script::{interpreter, versions};
use crate::workspace;

/// Groups of engines that do the same work, the native engine first.
const ENGINES: [&[(&str, &[&str])]; 3] = [
    &[("native, stage 0", &["--engine", "native", "--stage", "0"]), ("ddp", &["--engine", "ddp"])],
    &[
        ("native, stage 1", &["--engine", "native", "--stage", "1"]),
        ("deepspeed, stage 1", &["--engine", "deepspeed", "--stage", "1"]),
    ],
    &[
        ("native, stage 3", &["--engine", "native", "--stage", "3"]),
        ("fsdp2", &["--engine", "fsdp2"]),
    ],
];

/// All measurements of the native engine.
pub struct Report {
    command: String,
    machine: Machine,
    /// Overheads in the order of [`ENGINES`].
    overheads: Vec<Overhead>,
    warm: Warm,
    many_ranks: Vec<ManyRanks>,
}

/// Measures the native engine, and real engines with the first Python of `--python`.
pub fn measure(options: &Options) -> Result<Report> {
    let runs = options.step_runs;
    ensure!(runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let python = interpreter(options.python.first().context("--native compares with --python")?)?;
    let versions = versions(&python)?;
    let mut overheads: Vec<Overhead> = ENGINES
        .iter()
        .copied()
        .flatten()
        .map(|&(name, words)| {
            let python = (!name.starts_with("native")).then_some(Path::new(&python));
            Overhead::of(name.to_owned(), words, python)
        })
        .collect();
    overhead::measure(&mut overheads, runs, &scratch)?;
    Ok(Report {
        command: options.command(),
        machine: Machine::this(Some(versions))?,
        overheads,
        warm: Warm::measure(runs, &scratch)?,
        many_ranks: many_ranks::measure(runs, &scratch)?,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        let mut overheads = self.overheads.iter();
        let mut rows = Vec::new();
        for alike in ENGINES {
            let alike: Vec<&Overhead> = overheads.by_ref().take(alike.len()).collect();
            for overhead in &alike {
                let mut row = overhead.row();
                row.push(ratio(overhead.bare() / alike[0].bare()));
                rows.push(row);
            }
        }
        table(f, &[&overhead::HEAD[..], &["bare ÷ native"]].concat(), &rows)?;
        writeln!(f, "\n{}", self.warm)?;
        many_ranks::table(f, &self.many_ranks)
    }
}
