//! The wheels and the source distribution `zprobe`, which hold only the program `zprobe`.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::workshop::Workshop;
use crate::command::run;
use crate::workspace;

/// The platform tag of the oldest machines that the program has to run on: those of torch's own wheels.
pub const PLATFORM: &str = "manylinux_2_28";

/// Builds the wheel for the target `triple`, and returns the path of the program in it. Without `optimise`, the program
/// is slow, and the build takes a fraction of the time.
///
/// zig links the program against the symbols of a glibc as old as the platform's. The linker of the machine
/// would use the machine's own glibc, and a wheel of today's Debian would not run on a cluster of last year.
pub fn wheel(workshop: &Workshop, triple: &str, optimise: bool) -> Result<PathBuf> {
    let target = workspace::target_dir()?;
    let mut maturin = workshop.command("maturin")?;
    maturin
        .args(["build", "--locked", "--zig", "--compatibility", PLATFORM, "--target", triple])
        .arg("--out")
        .arg(&workshop.dist)
        .arg("--target-dir")
        .arg(&target);
    if !optimise {
        maturin.env("CARGO_PROFILE_WHEEL_OPT_LEVEL", "0");
    }
    run(&mut maturin)?;
    Ok(target.join(triple).join("wheel/zprobe"))
}

/// Packs the source distribution, from which pip builds the program on any other machine.
pub fn source(workshop: &Workshop) -> Result<()> {
    run(workshop.command("maturin")?.args(["sdist", "--out"]).arg(&workshop.dist))
}

/// Makes Rust's standard library ready for the target `triple`; rustup adds it to the toolchain if it is missing.
pub fn prepare(triple: &str) -> Result<()> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output = output.context("cannot start rustc")?;
    let sysroot = String::from_utf8(output.stdout).context("rustc's sysroot is not UTF-8")?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(triple).join("lib").is_dir() {
        return Ok(());
    }
    run(Command::new("rustup").args(["target", "add", triple]))
}

/// The target triple of this machine.
pub fn triple() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// The target triple of the other kind of machine that releases are for.
pub fn other_triple() -> &'static str {
    if ARCH == "aarch64" { "x86_64-unknown-linux-gnu" } else { "aarch64-unknown-linux-gnu" }
}
