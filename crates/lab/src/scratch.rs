//! Directories that an experiment does not leave behind.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use zprobe_model::run_dir;

/// A directory that is gone when this is.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory.
    pub fn new(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        run_dir::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
