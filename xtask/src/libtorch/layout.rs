//! The required contents of a libtorch directory.

use std::path::Path;

use anyhow::{Result, bail};

use super::VERSION;
use super::version::Version;

/// The files that the native engine links or, in the case of the header, includes.
const FILES: [&str; 4] =
    ["lib/libtorch_cpu.so", "lib/libc10.so", "lib/libtorch.so", "include/ATen/ATen.h"];

/// Checks that `dir` is a libtorch of the right release; `origin` names the variable or program that chose
/// `dir`.
pub fn check(dir: &Path, origin: &str) -> Result<()> {
    if let Some(missing) = FILES.iter().find(|file| !dir.join(file).is_file()) {
        bail!(
            "{} is not a libtorch directory ({origin}): it has no {missing}\n\
             name a directory that holds lib/ and include/, or none at all to have libtorch \
             {VERSION} downloaded",
            dir.display()
        );
    }
    let found = Version::of(dir)?;
    // Patch releases keep the interface, minor releases do not.
    if !found.is_compatible() {
        bail!(
            "{} is libtorch {found} ({origin}), and zprobe is built against {VERSION}\n\
             name a libtorch of that release, or none at all to have it downloaded",
            dir.display()
        );
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// A directory that passes for a libtorch of the given minor release.
    pub fn libtorch_2(minor: u32) -> TempDir {
        let dir = TempDir::new().unwrap();
        let header = format!(
            "#define TORCH_VERSION_MAJOR 2\n\n#define TORCH_VERSION_MINOR {minor}\n\n\
             #define TORCH_VERSION_PATCH 0\n"
        );
        for file in FILES.into_iter().chain(["include/torch/headeronly/version.h"]) {
            let file = dir.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, &header).unwrap();
        }
        dir
    }

    #[test]
    fn the_right_release_passes() {
        check(libtorch_2(11).path(), "a test").unwrap();
    }

    #[test]
    fn another_release_is_named() {
        let error = check(libtorch_2(6).path(), "LIBTORCH").unwrap_err().to_string();
        assert!(error.contains("is libtorch 2.6.0 (LIBTORCH)"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = libtorch_2(11);
        fs::remove_file(dir.path().join("lib/libc10.so")).unwrap();
        let error = check(dir.path(), "LIBTORCH").unwrap_err().to_string();
        assert!(error.contains("it has no lib/libc10.so"), "{error}");
    }
}
