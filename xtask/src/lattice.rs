//! Runs `zprobe sweep` over releases of DeepSpeed, and writes the results into documentation.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::engines::Environments;
use crate::page::Page;
use crate::workspace;

/// The page with the table.
pub const PAGE: Page = Page { path: "docs/lattice.md", command: "cargo xtask lattice" };

/// Releases of DeepSpeed, oldest first: the last of each line, and those around a fix.
const RELEASES: &[&str] =
    &["0.14.5", "0.15.4", "0.16.9", "0.17.6", "0.18.2", "0.18.6", "0.18.9", "0.19.0", "0.19.8"];

/// The release of torch on which all of them run.
const TORCH: &str = "2.11.0";

/// Options of `cargo xtask lattice`.
#[derive(clap::Args)]
pub struct Options {
    /// Only these releases [default: all of the page's]
    #[arg(long, value_name = "VERSION")]
    release: Vec<String>,

    /// Run nothing; only write the page from the results that are there
    #[arg(long)]
    page: bool,

    /// Go on where earlier sweeps of these releases stopped
    #[arg(long)]
    resume: bool,

    /// More arguments for `zprobe sweep`, for example `-- --part base`
    #[arg(last = true, value_name = "ARG")]
    args: Vec<String>,
}

/// Sweeps each release, and writes the page from all results that are there.
pub fn run(options: &Options) -> Result<()> {
    let dir = workspace::target_dir()?.join("lattice");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let chosen: Vec<&str> = match options.release.as_slice() {
        [] => RELEASES.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    if !options.page {
        let environments = Environments::prepare()?;
        for release in chosen {
            sweep(environments.zprobe()?, release, options, &results(&dir, release))?;
        }
    }
    let there: Vec<PathBuf> =
        RELEASES.iter().map(|it| results(&dir, it)).filter(|it| it.is_file()).collect();
    ensure!(!there.is_empty(), "{} holds no results; run it without --page", dir.display());
    let zprobe = workspace::zprobe()?;
    let mut command = Command::new(&zprobe);
    command.args(["sweep", "--output-format", "markdown", "--results"]).args(there);
    let output = command.output().with_context(|| format!("cannot start {}", zprobe.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() != Some(2), "zprobe makes no table: {stderr}");
    PAGE.write(&String::from_utf8(output.stdout)?)
}

/// File of the results of a release.
fn results(dir: &Path, release: &str) -> PathBuf {
    dir.join(format!("deepspeed-{release}.json"))
}

fn sweep(mut zprobe: Command, release: &str, options: &Options, results: &Path) -> Result<()> {
    eprintln!("DeepSpeed {release}");
    // The file gets its own name only when it is complete.
    let part = results.with_extension("part");
    let file = File::create(&part).with_context(|| format!("cannot write {}", part.display()))?;
    let resumed = if options.resume && results.is_file() {
        vec![OsStr::new("--resume"), results.as_os_str()]
    } else {
        Vec::new()
    };
    let status = zprobe
        .args(["sweep", "--engine", "deepspeed", "--confirm", "--output-format", "json"])
        .args(["--package", &format!("deepspeed=={release}")])
        .args(["--package", &format!("torch=={TORCH}")])
        .args(resumed)
        .args(&options.args)
        .stdout(file)
        .status()
        .context("cannot start zprobe")?;
    // Findings and crashes are no failure: the page shows them.
    let ran = status.code().is_some_and(|code| code != 2);
    ensure!(
        ran,
        "the sweep of DeepSpeed {release} ended with {status}; what is wrong is said above"
    );
    fs::rename(&part, results).with_context(|| format!("cannot write {}", results.display()))
}
