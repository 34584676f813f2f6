//! The private libtorch, under the target directory.
//!
//! The user's own pip downloads libtorch, so that the user's mirror, proxy and certificates are used. Only
//! the files that the native engine needs are unpacked: half a gigabyte instead of several.

mod disk;
mod download;
mod lock;
mod platform;
mod progress;
mod stage;
mod stamp;
mod unpack;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::host::{Compiler, Host};
use crate::libtorch::{VERSION, layout};
use stage::Stage;

/// Makes the private libtorch ready, and returns its directory.
///
/// If libtorch is ready, the call costs nothing. An interrupted attempt is thrown away and made again. Of
/// several attempts at the same time, one does the work.
pub fn ensure(host: &Host, compiler: &Compiler, target: &Path) -> Result<PathBuf> {
    let home = target.join("libtorch");
    let prefix = home.join(VERSION);
    if stamp::is_current(&prefix) {
        return Ok(prefix);
    }
    platform::check()?;
    fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
    let _lock = lock::acquire(&home)?;
    // Another process may have finished the work while this process waited.
    if !stamp::is_current(&prefix) {
        provision(host, compiler, &home, &prefix)?;
    }
    Ok(prefix)
}

/// Makes libtorch in a directory next to `prefix`, which is moved to `prefix` at the end.
fn provision(host: &Host, compiler: &Compiler, home: &Path, prefix: &Path) -> Result<()> {
    let start = Instant::now();
    let stage = Stage::create(home.join(format!("{VERSION}.partial")))?;
    disk::check(host, stage.root())?;
    let wheels = download::wheels(host, &stage)?;
    unpack::wheels(host, &stage, &wheels)?;
    // torch-sys links a libtorch.so. The real one would pull in CUDA's libraries, which are not unpacked.
    compiler.empty_shared_library(host, &stage.prefix().join("lib/libtorch.so"))?;
    layout::check(&stage.prefix(), "just downloaded")?;
    stamp::write(&stage.prefix())?;
    stage.publish(prefix)?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("libtorch {VERSION} is ready in {} ({seconds:.1} s)", prefix.display());
    Ok(())
}

#[cfg(test)]
mod tests;
