//! `cargo xtask build`

use anyhow::Result;

use crate::cargo;
use crate::host::Host;
use crate::libtorch::Libtorch;

/// Builds both programs in release.
pub fn build() -> Result<()> {
    let libtorch = Libtorch::locate(&Host::from_env())?;
    release(&libtorch)
}

/// The release build, against a libtorch that is ready.
pub fn release(libtorch: &Libtorch) -> Result<()> {
    let args = ["build", "--release", "--package", "zprobe", "--features", "native", "--bins"];
    cargo::run(libtorch.apply(cargo::cargo(&args)?))
}
