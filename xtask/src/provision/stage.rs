//! The directory in which a provisioning is made before it is moved into place.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory next to the final one, on the same file system; the directory is removed when the value is
/// dropped.
pub struct Stage(PathBuf);

impl Stage {
    /// Creates the directory, and removes the leftovers of an interrupted attempt.
    pub fn create(root: PathBuf) -> Result<Self> {
        remove(&root)?;
        let stage = Self(root);
        for dir in [stage.temporary(), stage.wheels(), stage.unpacked(), stage.prefix()] {
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(stage)
    }

    /// The path of the stage.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The directory of pip's unfinished downloads.
    pub fn temporary(&self) -> PathBuf {
        self.0.join("tmp")
    }

    /// The directory of the wheels.
    pub fn wheels(&self) -> PathBuf {
        self.0.join("wheels")
    }

    /// The directory of the unpacked wheels, in their own layout.
    pub fn unpacked(&self) -> PathBuf {
        self.0.join("unpacked")
    }

    /// The directory that becomes the libtorch directory.
    pub fn prefix(&self) -> PathBuf {
        self.0.join("prefix")
    }

    /// Moves the libtorch directory to its final place.
    pub fn publish(&self, place: &Path) -> Result<()> {
        remove(place)?;
        fs::rename(self.prefix(), place)
            .with_context(|| format!("cannot move libtorch to {}", place.display()))
    }
}

impl Drop for Stage {
    /// Removes the directory, so that its disk space is free even after a failure.
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Removes a directory that may not exist.
fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
