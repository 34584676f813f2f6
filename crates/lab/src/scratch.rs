//! Temporary directories of experiments.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use zprobe_model::run_dir;

/// A directory that is removed when this value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory at `path`.
    pub fn new(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        run_dir::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// The absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
