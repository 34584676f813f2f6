//! The interpreter that has the engine.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use zprobe::environment::{Cache, Installer, Packages};

use super::Args;

/// What `--python` names, or that of an environment with the packages of `--package`.
pub fn interpreter(args: &Args) -> Result<PathBuf> {
    if args.package.is_empty() {
        return Ok(args.python.clone().unwrap_or_else(|| PathBuf::from("python3")));
    }
    ensure!(
        args.python.is_none(),
        "--package and --python both say which Python is meant; leave one of them out",
    );
    let packages = packages(&args.package)?;
    let python = Cache::locate()?.provide(&packages, &Installer::find(), &mut |step| {
        anstream::eprintln!("{packages}: {step}");
    })?;
    Ok(python)
}

fn packages(texts: &[String]) -> Result<Packages> {
    let pairs = texts.iter().map(|text| {
        let pair = text.split_once("==").with_context(|| {
            format!("--package {text}: give a name and a version, like deepspeed==0.18.9")
        })?;
        let version = pair.1.parse();
        let version = version.with_context(|| format!("--package {text}: no such version"))?;
        Ok((pair.0, version))
    });
    pairs.collect::<Result<Vec<_>>>().map(|pairs| pairs.into_iter().collect())
}
