//! The wheel `zprobe`, which holds the program `zprobe` alone.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::Result;

use super::workshop::Workshop;
use crate::command::run;
use crate::workspace;

/// The oldest machines that the program is to run on: those that torch's own wheels run on.
const PLATFORM: &str = "manylinux_2_28";

/// Builds the wheel, and returns the path of the program in it.
///
/// zig links it, against the symbols of a glibc as old as the platform's; the linker of the machine takes
/// those of its own, and a wheel of today's Debian would not run on a cluster of last year.
pub fn wheel(workshop: &Workshop) -> Result<PathBuf> {
    let target = workspace::target_dir()?;
    let mut maturin = workshop.command("maturin")?;
    maturin
        .args(["build", "--locked", "--zig", "--compatibility", PLATFORM, "--out"])
        .arg(&workshop.dist)
        .arg("--target-dir")
        .arg(&target);
    run(&mut maturin)?;
    Ok(target.join(triple()).join("wheel/zprobe"))
}

/// The kind of machine that everything is built for, as Rust calls it.
pub fn triple() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}
