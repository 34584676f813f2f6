//! The private libtorch, under the target directory.
//!
//! The user's own pip downloads it, so that every mirror, proxy and certificate that works there
//! works here, and only what the native engine needs is unpacked: half a gigabyte instead of
//! several.

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
/// A libtorch that is ready costs nothing. An interrupted attempt is thrown away and made again,
/// and of several attempts at the same time one does the work.
pub fn ensure(host: &Host, compiler: &Compiler, target: &Path) -> Result<PathBuf> {
    let home = target.join("libtorch");
    let prefix = home.join(VERSION);
    if stamp::is_current(&prefix) {
        return Ok(prefix);
    }
    platform::check()?;
    fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
    let _lock = lock::acquire(&home)?;
    // Another process may have done it all while this one waited.
    if !stamp::is_current(&prefix) {
        provision(host, compiler, &home, &prefix)?;
    }
    Ok(prefix)
}

/// Makes `prefix`: in a directory beside it, which is moved into place at the end.
fn provision(host: &Host, compiler: &Compiler, home: &Path, prefix: &Path) -> Result<()> {
    let start = Instant::now();
    let stage = Stage::create(home.join(format!("{VERSION}.partial")))?;
    disk::check(host, stage.root())?;
    let wheels = download::wheels(host, &stage)?;
    unpack::wheels(host, &stage, &wheels)?;
    // torch-sys links a libtorch.so. The real one would pull in CUDA's, which are not here.
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
