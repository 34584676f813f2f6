//! The task `cargo xtask build`.

use anyhow::Result;

use crate::cargo::{self, cargo};
use crate::host::Host;
use crate::libtorch::Libtorch;

/// The arguments that select the native engine, always in release, so that nothing is compiled for two
/// profiles.
const NATIVE: &str = "--release --package zprobe --features native";

/// Builds `zprobe` and `zprobe-rank` in release.
pub fn build() -> Result<()> {
    let libtorch = Libtorch::locate(&Host::from_env())?;
    release(&libtorch)
}

/// Builds only `zprobe` in release, which needs no libtorch.
pub fn launcher() -> Result<()> {
    cargo::run(cargo("build --release --package zprobe --bin zprobe")?)
}

/// The release build, against a libtorch that is ready.
///
/// The examples are built, too, because they need the same dependencies as the tests. For programs only,
/// cargo selects other features of some dependencies, and the tests would compile those dependencies and
/// zprobe once more.
pub fn release(libtorch: &Libtorch) -> Result<()> {
    cargo::run(libtorch.apply(cargo(&format!("build {NATIVE} --bins --examples"))?))
}
