//! `zprobe provision`: a Python environment with pinned packages, as the zoo makes them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use zprobe::environment::{Cache, Installer, Packages};

use super::{console, verbosity};

/// Arguments of `zprobe provision`.
#[derive(clap::Args)]
pub struct Args {
    /// Packages with their versions, for example `torch==2.11.0 deepspeed==0.19.8`
    #[arg(required = true, value_name = "NAME==VERSION")]
    packages: Vec<String>,
}

pub fn main(args: &Args) -> Result<u8> {
    super::print(&format!("{}\n", interpreter(&args.packages)?.display()))?;
    Ok(0)
}

/// The interpreter of an environment with these packages, with progress on standard error.
pub fn interpreter(packages: &[String]) -> Result<PathBuf> {
    let packages = packages.iter().map(|text| pinned(text)).collect::<Result<Packages>>()?;
    let line = verbosity::spinner();
    line.enable_steady_tick(Duration::from_millis(100));
    let python = Cache::locate()?.provide(&packages, &Installer::find(), &mut |step| {
        if line.is_hidden() {
            verbosity::say(format_args!("{packages}: {step}"));
        } else {
            console::message(&line, &format!("{packages}: {step}"));
        }
    })?;
    line.finish_and_clear();
    Ok(python)
}

/// Reads `name==version`.
fn pinned(text: &str) -> Result<(String, pep440_rs::Version)> {
    let (name, version) = text
        .split_once("==")
        .with_context(|| format!("{text}: give a package with its version, as in torch==2.11.0"))?;
    let version = version.parse().with_context(|| format!("{text}: not a version"))?;
    Ok((name.to_owned(), version))
}
