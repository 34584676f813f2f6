//! The files that users install zprobe from: wheels, the archive of a release, and the checksums of all.

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

/// Release of everything that is built, which zprobe and this program share.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds everything, with `rank`, the native engine's program of the release build; returns the
/// directory that holds it all.
pub fn build(host: &Host, rank: &Path) -> Result<PathBuf> {
    let workshop = Workshop::open(host)?;
    let program = zprobe::wheel(&workshop)?;
    native::wheel(&workshop, rank)?;
    workshop.build_wheel(&workspace::root().join(integrations::PLUGIN), &workshop.dist)?;
    archive::pack(&workshop, &program)?;
    checksums::write(&workshop.dist)?;
    Ok(workshop.dist)
}
