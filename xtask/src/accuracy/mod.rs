//! Accuracy of zprobe: outcomes of random runs of engines that are right, of every fault and of
//! every known bug.

mod bound;
mod false_alarms;
mod misses;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::engines::Environments;
use crate::page::Page;
use crate::sweeps;

/// The page with the tables.
pub const PAGE: Page = Page { path: "docs/accuracy.md", command: "cargo xtask accuracy" };

/// An engine that is right, but for bugs that are known.
pub struct Subject {
    /// Name of the engine.
    pub engine: &'static str,
    /// Packages of its environment; empty for the native engine.
    packages: &'static [&'static str],
    /// Number of configurations that are drawn.
    runs: usize,
}

/// All engines that are measured.
const SUBJECTS: &[Subject] = &[
    Subject { engine: "native", packages: &[], runs: 500 },
    Subject { engine: "ddp", packages: &["torch==2.15.0"], runs: 250 },
    Subject { engine: "fsdp2", packages: &["torch==2.15.0"], runs: 250 },
    Subject { engine: "deepspeed", packages: &["deepspeed==0.19.8", "torch==2.11.0"], runs: 200 },
];

/// Options of `cargo xtask accuracy`.
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

/// Runs the configurations drawn for each engine, and writes the page from all results that are
/// there.
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

/// File of the results of an engine.
fn results(dir: &Path, subject: &Subject) -> PathBuf {
    dir.join(format!("{}.json", subject.engine))
}

/// The sweep of what is drawn of an engine.
fn draw(mut sweep: Command, subject: &Subject, seed: u64) -> Command {
    sweep.args(["sweep", "--engine", subject.engine, "--confirm", "--output-format", "json"]);
    sweep.args(["--random", &subject.runs.to_string(), "--seed", &seed.to_string()]);
    for package in subject.packages {
        sweep.args(["--package", package]);
    }
    sweep
}
