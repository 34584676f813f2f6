//! The task `cargo xtask lattice`.

use anyhow::Result;

use crate::cargo::{self, cargo};
use crate::lattice::{self, Options};

/// Builds `zprobe`, which needs no libtorch for a sweep of DeepSpeed, and sweeps.
pub fn lattice(options: &Options) -> Result<()> {
    cargo::run(cargo("build --release --package zprobe --bin zprobe")?)?;
    lattice::run(options)
}
