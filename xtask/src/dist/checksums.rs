//! The SHA-256 of every finished file, in the format that `sha256sum --check` reads.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

/// The name of the file with the checksums.
const NAME: &str = "SHA256SUMS";

/// Writes the checksums of all files in a directory, but hidden ones, into that directory.
pub fn write(dir: &Path) -> Result<()> {
    let context = || format!("cannot read {}", dir.display());
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // uv writes a `.gitignore` into the directory.
        if name.starts_with('.') {
            continue;
        }
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut sum = String::new();
        for byte in Sha256::digest(bytes) {
            let _ = write!(sum, "{byte:02x}");
        }
        lines.push((name, sum));
    }
    lines.sort();
    let text: String = lines.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    let path = dir.join(NAME);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_its_sum() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b"), "").unwrap();
        fs::write(dir.path().join("a"), "abc").unwrap();
        fs::write(dir.path().join(".gitignore"), "*").unwrap();
        write(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n\
                        e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n";
        assert_eq!(text, expected);
    }
}
