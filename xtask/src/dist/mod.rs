//! The files that users install zprobe from: wheels, the archive of a release, and the checksums of all
//! files.

mod archive;
mod checksums;
mod native;
mod workshop;
mod zprobe;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::host::Host;
use crate::{integrations, workspace};
use workshop::Workshop;

/// The version of everything that is built, which zprobe and this program share.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds all files that users install; `rank` is the `zprobe-rank` of the release build. With `optimise` the files are
/// those of a release; without it, they are only for tests. Returns the directory with the finished files.
pub fn build(host: &Host, rank: &Path, optimise: bool) -> Result<PathBuf> {
    let workshop = Workshop::open(host)?;
    let program = zprobe::wheel(&workshop, optimise)?;
    native::wheel(&workshop, rank)?;
    workshop.build_wheel(&workspace::root().join(integrations::PLUGIN), &workshop.dist)?;
    archive::pack(&workshop, &program)?;
    checksums::write(&workshop.dist)?;
    Ok(workshop.dist)
}
