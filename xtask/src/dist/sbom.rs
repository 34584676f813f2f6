//! The software bill of materials (SBOM): all crates that are compiled into `zprobe`, in CycloneDX's JSON.
//!
//! maturin puts the SBOM into the wheel `zprobe`; this module copies it out of the wheel.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};
use zip::ZipArchive;

use super::VERSION;
use super::workshop::Workshop;
use super::zprobe::PLATFORM;
use crate::workspace;

/// The path of the SBOM in the wheel, from the directory of the wheel's metadata.
const IN_WHEEL: &str = "sboms/zprobe.cyclonedx.json";

/// Copies the SBOM from the wheel into the directory of the finished files.
pub fn extract(workshop: &Workshop) -> Result<()> {
    let arch = std::env::consts::ARCH;
    let wheel = workshop.dist.join(format!("zprobe-{VERSION}-py3-none-{PLATFORM}_{arch}.whl"));
    let text = read(&wheel).with_context(|| format!("no SBOM in {}", wheel.display()))?;
    // The crates of this repository are named by their paths. The path of the build machine is of no use elsewhere.
    let text = text.replace(&format!("{}/", workspace::root().display()), "/");
    let text = text.replace(&format!("{}#", workspace::root().display()), "/#");
    let path = workshop.dist.join(format!("zprobe-{VERSION}.cyclonedx.json"));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The text of the SBOM in a wheel.
fn read(wheel: &Path) -> Result<String> {
    let mut wheel = ZipArchive::new(File::open(wheel)?)?;
    let entry = wheel.by_name(&format!("zprobe-{VERSION}.dist-info/{IN_WHEEL}"))?;
    Ok(std::io::read_to_string(entry)?)
}
