//! The task `cargo xtask build`.

use anyhow::Result;

use crate::cargo::{self, cargo};
use crate::host::Host;
use crate::libtorch::Libtorch;

/// Arguments that select every package; compiled for one profile and one set of features.
pub const EVERYTHING: &str = "--release --workspace --features zprobe/native";

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
/// The examples are built, too, because they need the same dependencies as the tests. Without examples, cargo
/// selects other features of some dependencies, and the tests would compile those dependencies once more.
pub fn release(libtorch: &Libtorch) -> Result<()> {
    cargo::run(libtorch.apply(cargo(&format!("build {EVERYTHING} --bins --examples"))?))
}
