//! `zprobe provision`: creates a Python environment with pinned packages, as `zprobe zoo` does.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use zprobe_lab::console::{self, ProgressLine};
use zprobe_lab::environment::{Cache, Installer};
use zprobe_report::Exit;
use zprobe_zoo::Packages;

/// The arguments of `zprobe provision`.
#[derive(clap::Args)]
pub struct ProvisionArgs {
    /// Packages with their versions, for example `torch==2.11.0 deepspeed==0.19.8`
    #[arg(required = true, value_name = "NAME==VERSION")]
    packages: Vec<String>,
}

pub fn main(args: &ProvisionArgs) -> Result<Exit> {
    console::print(&format!("{}\n", interpreter(&args.packages)?.display()))?;
    Ok(Exit::Clean)
}

/// The interpreter of an environment with these packages. A missing environment is created, with progress on standard
/// error.
pub fn interpreter(packages: &[String]) -> Result<PathBuf> {
    let packages = self::packages(packages)?;
    let line = ProgressLine::steps();
    let mut step = |step: &str| line.step(&format!("{packages}: {step}"));
    Ok(Cache::locate()?.provide(&packages, &Installer::find(), &mut step)?)
}

/// Parses packages of the form `name==version`.
pub fn packages<'a>(words: impl IntoIterator<Item = &'a String>) -> Result<Packages> {
    words.into_iter().map(|text| pinned(text)).collect()
}

/// Parses one `name==version`.
fn pinned(text: &str) -> Result<(String, pep440_rs::Version)> {
    let (name, version) = text
        .split_once("==")
        .with_context(|| format!("{text}: give a package with its version, as in torch==2.11.0"))?;
    let version = version.parse().with_context(|| format!("{text}: not a version"))?;
    Ok((name.to_owned(), version))
}
