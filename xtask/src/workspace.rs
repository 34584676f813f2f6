//! Paths of the repository and its build products.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the repository.
pub fn root() -> &'static Path {
    // Cargo rebuilds this package when the repository moves, so the built-in path stays true.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is below the root")
}

/// The target directory in use, however cargo was given its path.
pub fn target_dir() -> Result<PathBuf> {
    // The path of this program is `<target>/<profile>/xtask`.
    let exe = env::current_exe().context("cannot find the path of this program")?;
    let target = exe.ancestors().nth(2).context("this program is not in a target directory")?;
    Ok(target.to_path_buf())
}

/// The `zprobe` program of the release build.
pub fn zprobe() -> Result<PathBuf> {
    Ok(target_dir()?.join("release").join("zprobe"))
}

/// The `zprobe-rank` program of the release build.
pub fn rank_program() -> Result<PathBuf> {
    Ok(target_dir()?.join("release").join("zprobe-rank"))
}
