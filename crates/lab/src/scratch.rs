//! Temporary directories of experiments.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::store::held;
use zprobe_model::run_dir;

/// A directory that is locked, and is removed when this value is dropped.
pub struct Scratch {
    path: PathBuf,
    _lock: Option<File>,
}

impl Scratch {
    /// Makes a directory at `path`.
    pub fn new(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        run_dir::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let lock = held(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// The absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
