//! Runs `zprobe sweep` over releases of DeepSpeed, and writes the results into the documentation.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::engines::Environments;
use crate::page::Page;
use crate::{sweeps, workspace};

/// The page with the table of releases.
pub const PAGE: Page = Page { path: "docs/lattice.md", command: "cargo xtask lattice" };

/// The releases of DeepSpeed, oldest first: the last of each line, and those around a fix.
const RELEASES: &[&str] =
    &["0.14.5", "0.15.4", "0.16.9", "0.17.6", "0.18.2", "0.18.6", "0.18.9", "0.19.0", "0.19.8"];

/// The release of torch on which all releases of DeepSpeed run.
const TORCH: &str = "2.11.0";

/// The options of `cargo xtask lattice`.
#[derive(clap::Args)]
pub struct Options {
    /// Only these releases [default: all releases of the page]
    #[arg(long, value_name = "VERSION")]
    release: Vec<String>,

    #[command(flatten)]
    sweeps: sweeps::Options,
}

/// Sweeps each release, and writes the page from all results found in the directory.
pub fn run(options: &Options) -> Result<()> {
    let dir = sweeps::dir("lattice")?;
    let chosen: Vec<&str> = match options.release.as_slice() {
        [] => RELEASES.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    if !options.sweeps.page {
        let environments = Environments::prepare()?;
        for release in chosen {
            let subject = format!("DeepSpeed {release}");
            let sweep = whole(environments.zprobe()?, release);
            options.sweeps.sweep(sweep, &subject, &results(&dir, release))?;
        }
    }
    let there = sweeps::kept(&dir, RELEASES.iter().map(|it| (it, results(&dir, it))))?;
    let zprobe = workspace::zprobe()?;
    let mut command = Command::new(&zprobe);
    command.args(["sweep", "--output-format", "markdown", "--results"]);
    command.args(there.iter().map(|(_, results)| results));
    let output = command.output().with_context(|| format!("cannot start {}", zprobe.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() != Some(2), "zprobe could not make the table: {stderr}");
    PAGE.write(&String::from_utf8(output.stdout)?)
}

/// The file with the results of a release.
fn results(dir: &Path, release: &str) -> PathBuf {
    dir.join(format!("deepspeed-{release}.json"))
}

/// The command that sweeps all configurations of a release.
fn whole(mut sweep: Command, release: &str) -> Command {
    sweep.args(["sweep", "--engine", "deepspeed", "--confirm", "--output-format", "json"]);
    sweep.args(["--package", &format!("deepspeed=={release}")]);
    sweep.args(["--package", &format!("torch=={TORCH}")]);
    sweep
}
