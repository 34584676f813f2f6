//! The files of a release: wheels, the source distribution, archives, the SBOM, and the checksums of all files.

mod archive;
mod checksums;
mod native;
mod sbom;
mod workshop;
mod zprobe;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::run;
use crate::host::Host;
use crate::{integrations, workspace};
use workshop::Workshop;

/// The version of everything that is built, which zprobe and this program share.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds all files that users install; `rank` is the `zprobe-rank` of the release build. With `optimise` the files are
/// those of a release, for both kinds of machines; without it, they are only for tests on this machine. Returns the
/// directory with the finished files.
pub fn build(host: &Host, rank: &Path, optimise: bool) -> Result<PathBuf> {
    let workshop = Workshop::open(host)?;
    let triple = zprobe::triple();
    let program = zprobe::wheel(&workshop, &triple, optimise)?;
    native::wheel(&workshop, rank)?;
    workshop.build_wheel(&workspace::root().join(integrations::PLUGIN), &workshop.dist)?;
    zprobe::source(&workshop)?;
    archive::pack(&workshop, &triple, &program, &program)?;
    if optimise {
        let other = zprobe::other_triple();
        match zprobe::prepare(other) {
            Ok(()) => {
                let cross = zprobe::wheel(&workshop, other, optimise)?;
                archive::pack(&workshop, other, &cross, &program)?;
            }
            Err(cause) => eprintln!(
                "warning: no wheel and no archive for {other}, because Rust's standard library for it is missing \
                 ({cause:#}): install it (`rustup target add {other}`), then run `cargo xtask dist` again"
            ),
        }
    }
    sbom::extract(&workshop)?;
    check(&workshop)?;
    checksums::write(&workshop.dist)?;
    Ok(workshop.dist)
}

/// Checks the files that go to PyPI as PyPI does, with twine and uv; nothing is uploaded.
fn check(workshop: &Workshop) -> Result<()> {
    let pattern = format!("zprobe-{VERSION}.tar.gz");
    let mut files = Vec::new();
    for entry in fs::read_dir(&workshop.dist)? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "whl") || path.ends_with(&pattern) {
            files.push(path);
        }
    }
    run(workshop.command("twine")?.args(["check", "--strict"]).args(&files))?;
    let mut uv = workshop.command("uv")?;
    run(uv.args(["publish", "--quiet", "--dry-run", "--trusted-publishing", "never"]).args(&files))
}
