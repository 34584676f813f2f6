//! The accuracy of zprobe: outcomes of random runs of correct engines, of every fault and of every known bug.

mod bound;
mod false_alarms;
mod misses;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::engines::Environments;
use crate::page::Page;
use crate::sweeps;

/// The page with the tables of accuracy.
pub const PAGE: Page = Page { path: "docs/accuracy.md", command: "cargo xtask accuracy" };

/// An engine that is correct except for known bugs.
pub struct Subject {
    /// The name of the engine.
    pub engine: &'static str,
    /// Packages of the engine's environment; empty for the native engine.
    packages: &'static [&'static str],
    /// The number of configurations that are drawn at random.
    runs: usize,
}

/// All engines whose accuracy is measured.
const SUBJECTS: &[Subject] = &[
    Subject { engine: "native", packages: &[], runs: 500 },
    Subject { engine: "ddp", packages: &["torch==2.15.0"], runs: 250 },
    Subject { engine: "fsdp2", packages: &["torch==2.15.0"], runs: 250 },
    Subject { engine: "deepspeed", packages: &["deepspeed==0.19.8", "torch==2.11.0"], runs: 200 },
];

/// The options of `cargo xtask accuracy`.
#[derive(clap::Args)]
pub struct Options {
    /// Only these engines [default: all]
    #[arg(long, value_name = "ENGINE")]
    engine: Vec<String>,

    /// Seed of the draw
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    sweeps: sweeps::Options,
}

/// Runs the configurations drawn for each engine, and writes the page from all results found in the
/// directory.
pub fn run(options: &Options) -> Result<()> {
    let dir = sweeps::dir("accuracy")?;
    let wanted = |subject: &&Subject| {
        options.engine.is_empty() || options.engine.iter().any(|it| it == subject.engine)
    };
    if !options.sweeps.page {
        let environments = Environments::prepare()?;
        for subject in SUBJECTS.iter().filter(wanted) {
            let sweep = draw(environments.zprobe()?, subject, options.seed);
            options.sweeps.sweep(sweep, subject.engine, &results(&dir, subject))?;
        }
    }
    let there = sweeps::kept(&dir, SUBJECTS.iter().map(|it| (it, results(&dir, it))))?;
    let drawn = false_alarms::table(&there)?;
    PAGE.write(&format!("{drawn}\n{}", misses::table()?))
}

/// The file with the results of an engine.
fn results(dir: &Path, subject: &Subject) -> PathBuf {
    dir.join(format!("{}.json", subject.engine))
}

/// The command of a sweep over the random configurations of an engine.
fn draw(mut sweep: Command, subject: &Subject, seed: u64) -> Command {
    sweep.args(["sweep", "--engine", subject.engine, "--confirm", "--output-format", "json"]);
    sweep.args(["--random", &subject.runs.to_string(), "--seed", &seed.to_string()]);
    for package in subject.packages {
        sweep.args(["--package", package]);
    }
    sweep
}
