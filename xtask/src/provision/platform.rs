//! The platforms that have a libtorch to download.

use std::env::consts::{ARCH, OS};

use anyhow::{Result, bail};

use crate::libtorch::VERSION;

/// Checks that the wheels are made for this machine.
pub fn check() -> Result<()> {
    check_one(OS, ARCH, cfg!(target_env = "gnu"))
}

/// Checks one kind of machine.
fn check_one(os: &str, arch: &str, glibc: bool) -> Result<()> {
    if (os, arch, glibc) == ("linux", "x86_64", true) {
        return Ok(());
    }
    let libc = if os == "linux" && !glibc { " without glibc" } else { "" };
    bail!(
        "libtorch is downloaded for Linux with glibc on x86-64 only, and this is {os}{libc} on \
         {arch}\nset LIBTORCH to the directory of a libtorch {VERSION} made for this machine"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_on_x86_64_passes() {
        check_one("linux", "x86_64", true).unwrap();
    }

    #[test]
    fn others_are_named() {
        for (os, arch, glibc, expected) in [
            ("macos", "aarch64", false, "this is macos on aarch64"),
            ("linux", "aarch64", true, "this is linux on aarch64"),
            ("linux", "x86_64", false, "this is linux without glibc on x86_64"),
        ] {
            let error = check_one(os, arch, glibc).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("set LIBTORCH"), "{error}");
        }
    }
}
