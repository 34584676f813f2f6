//! Long sweeps whose results are kept: pages are made from the results of all sweeps that ever ran.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The options of sweeps.
#[derive(clap::Args)]
// The commands that take these options have options of their own, whose clap group has the same name.
#[group(skip)]
pub struct Options {
    /// Run nothing: only make the page from the results found
    #[arg(long)]
    pub page: bool,

    /// Continue earlier sweeps of the same configurations
    #[arg(long)]
    resume: bool,

    /// More arguments for `zprobe sweep`, for example `-- --jobs 2`
    #[arg(last = true, value_name = "ARG")]
    args: Vec<String>,
}

impl Options {
    /// Runs `zprobe sweep`, whose command has all arguments except the ones of these options, and keeps the
    /// results.
    pub fn sweep(&self, mut sweep: Command, subject: &str, results: &Path) -> Result<()> {
        eprintln!("{subject}");
        // Incomplete results have another name.
        let part = results.with_extension("part");
        let cannot_write = || format!("cannot write {}", part.display());
        if self.resume && results.is_file() {
            sweep.arg("--resume").arg(results);
        }
        sweep.args(&self.args).stdout(File::create(&part).with_context(cannot_write)?);
        let status = sweep.status().context("cannot start zprobe")?;
        // Findings and crashes are no failure of a sweep.
        let ran = status.code().is_some_and(|code| code != 2);
        ensure!(ran, "the sweep of {subject} ended with {status}; see the messages above");
        fs::rename(&part, results).with_context(|| format!("cannot write {}", results.display()))
    }
}

/// The directory that keeps the results of this kind.
pub fn dir(kind: &str) -> Result<PathBuf> {
    let dir = workspace::target_dir()?.join(kind);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// The existing results; an error if there are none.
pub fn kept<T>(
    dir: &Path,
    all: impl IntoIterator<Item = (T, PathBuf)>,
) -> Result<Vec<(T, PathBuf)>> {
    let there: Vec<_> = all.into_iter().filter(|(_, results)| results.is_file()).collect();
    ensure!(!there.is_empty(), "{} holds no results; run it without --page", dir.display());
    Ok(there)
}
