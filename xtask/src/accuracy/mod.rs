//! Accuracy of zprobe: outcomes of random runs of engines that are right, of every fault and of
//! every known bug.

mod bound;
mod false_alarms;
mod misses;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::engines::Environments;
use crate::page::Page;
use crate::workspace;

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

    /// Run nothing; only write the page from the results that are there
    #[arg(long)]
    page: bool,

    /// Go on where earlier draws from this seed stopped
    #[arg(long)]
    resume: bool,

    /// More arguments for `zprobe sweep`, for example `-- --jobs 2`
    #[arg(last = true, value_name = "ARG")]
    args: Vec<String>,
}

/// Runs the configurations drawn for each engine, and writes the page from all results that are
/// there.
pub fn run(options: &Options) -> Result<()> {
    let dir = workspace::target_dir()?.join("accuracy");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let wanted = |subject: &&Subject| {
        options.engine.is_empty() || options.engine.iter().any(|it| it == subject.engine)
    };
    if !options.page {
        let environments = Environments::prepare()?;
        for subject in SUBJECTS.iter().filter(wanted) {
            sweep(&environments, subject, options, &results(&dir, subject))?;
        }
    }
    let there: Vec<(&Subject, PathBuf)> =
        SUBJECTS.iter().map(|it| (it, results(&dir, it))).filter(|(_, it)| it.is_file()).collect();
    ensure!(!there.is_empty(), "{} holds no results; run it without --page", dir.display());
    let drawn = false_alarms::table(&there)?;
    PAGE.write(&format!("{drawn}\n{}", misses::table()?))
}

/// File of the results of an engine.
fn results(dir: &Path, subject: &Subject) -> PathBuf {
    dir.join(format!("{}.json", subject.engine))
}

fn sweep(
    environments: &Environments,
    subject: &Subject,
    options: &Options,
    results: &Path,
) -> Result<()> {
    eprintln!("{}", subject.engine);
    // The file gets its own name only when it is complete.
    let part = results.with_extension("part");
    let file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let mut sweep = environments.zprobe()?;
    sweep.args(["sweep", "--engine", subject.engine, "--confirm", "--output-format", "json"]);
    sweep.args(["--random", &subject.runs.to_string(), "--seed", &options.seed.to_string()]);
    for package in subject.packages {
        sweep.args(["--package", package]);
    }
    if options.resume && results.is_file() {
        sweep.arg("--resume").arg(results);
    }
    let status = sweep.args(&options.args).stdout(file).status().context("cannot start zprobe")?;
    // Findings are no failure: this task counts them.
    let ran = status.code().is_some_and(|code| code != 2);
    ensure!(ran, "the runs of {} ended with {status}; what is wrong is said above", subject.engine);
    fs::rename(&part, results).with_context(|| format!("cannot write {}", results.display()))
}
