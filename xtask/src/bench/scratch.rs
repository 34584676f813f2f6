//! A directory for the files that the measured programs write.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory for files of measured programs. Its last contents stay, so that they can be inspected after a
/// failure.
pub struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// Makes the directory and empties it.
    pub fn new(dir: PathBuf) -> Result<Self> {
        let scratch = Self { dir };
        clear(&scratch.dir)?;
        fs::create_dir_all(&scratch.dir)
            .with_context(|| format!("cannot make {}", scratch.dir.display()))?;
        Ok(scratch)
    }

    /// The path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path in the directory at which nothing exists.
    pub fn empty(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        clear(&path)?;
        Ok(path)
    }

    /// A new file in the directory.
    pub fn create(&self, name: &str) -> Result<File> {
        let path = self.dir.join(name);
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The text of a file in the directory.
    pub fn read(&self, name: &str) -> Result<String> {
        let path = self.dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Removes a directory if it exists.
fn clear(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path().join("bench")).unwrap();
        fs::create_dir(scratch.dir().join("run")).unwrap();
        assert!(!scratch.empty("run").unwrap().exists());
        assert!(!scratch.empty("run").unwrap().exists());
        fs::write(scratch.dir().join("old"), "").unwrap();
        assert!(!Scratch::new(scratch.dir().into()).unwrap().dir().join("old").exists());
    }
}
