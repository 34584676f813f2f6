//! The wheel `zprobe`, which holds only the program `zprobe`.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::Result;

use super::workshop::Workshop;
use crate::command::run;
use crate::workspace;

/// The platform tag of the oldest machines that the program has to run on: those of torch's own wheels.
const PLATFORM: &str = "manylinux_2_28";

/// Builds the wheel, and returns the path of the program in it. Without `optimise`, the program is slow, and the build
/// takes a fraction of the time.
///
/// zig links the program against the symbols of a glibc as old as the platform's. The linker of the machine
/// would use the machine's own glibc, and a wheel of today's Debian would not run on a cluster of last year.
pub fn wheel(workshop: &Workshop, optimise: bool) -> Result<PathBuf> {
    let target = workspace::target_dir()?;
    let mut maturin = workshop.command("maturin")?;
    maturin
        .args(["build", "--locked", "--zig", "--compatibility", PLATFORM, "--out"])
        .arg(&workshop.dist)
        .arg("--target-dir")
        .arg(&target);
    if !optimise {
        maturin.env("CARGO_PROFILE_WHEEL_OPT_LEVEL", "0");
    }
    run(&mut maturin)?;
    Ok(target.join(triple()).join("wheel/zprobe"))
}

/// The target triple that everything is built for.
pub fn triple() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}
