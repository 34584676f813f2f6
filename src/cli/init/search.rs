//! Searches a project for DeepSpeed configuration files, within limits on depth, entries and size.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The search goes this many directories deep.
const DEPTH: usize = 4;

/// The search ends after this many directory entries: a project has some thousand, its data may have millions.
const ENTRIES: usize = 20_000;

/// Files of this size, in bytes, or larger are not searched.
const BYTES: u64 = 1 << 20;

/// At most this many files are returned; users can write probes for the others.
const FILES: usize = 8;

/// A JSON file with this key counts as a DeepSpeed file.
const SECTION: &str = "\"zero_optimization\"";

/// The DeepSpeed files that were found below a directory.
pub struct Found {
    /// The paths relative to the directory, sorted.
    pub files: Vec<String>,
    /// The number of further files that were found.
    pub more: usize,
    /// True if the search ended early, after `ENTRIES` directory entries.
    pub is_cut: bool,
}

/// The DeepSpeed files below `root`. Hidden directories, environments, build outputs and symbolic links are left
/// out.
pub fn deepspeed_files(root: &Path) -> Result<Found> {
    let (mut found, mut left) = (Vec::new(), ENTRIES);
    look(root, DEPTH, &mut left, &mut found)?;
    let mut names: Vec<String> = found
        .iter()
        .filter_map(|path| path.strip_prefix(root).ok()?.to_str().map(str::to_owned))
        .collect();
    names.sort();
    let more = names.len().saturating_sub(FILES);
    names.truncate(FILES);
    Ok(Found { files: names, more, is_cut: left == 0 })
}

fn look(dir: &Path, depth: usize, left: &mut usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    // Sorted, so that the same files are found in any order of the directory if the search is cut.
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if *left == 0 {
            return Ok(());
        }
        *left -= 1;
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() && depth > 0 && !is_left_out(&path) {
            // `zprobe check` could not read files in an unreadable directory, either.
            let _ = look(&path, depth - 1, left, found);
        } else if kind.is_file() && is_one(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// True for a directory whose files do not belong to the project: hidden ones, build outputs and environments.
fn is_left_out(dir: &Path) -> bool {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let is_made = ["node_modules", "target", "build", "dist", "wandb"].contains(&&*name);
    name.starts_with('.') || is_made || dir.join("pyvenv.cfg").exists()
}

fn is_one(path: &Path) -> bool {
    let mut text = String::new();
    path.extension().is_some_and(|ending| ending == "json")
        && File::open(path)
            .and_then(|file| file.take(BYTES).read_to_string(&mut text))
            .is_ok_and(|bytes| (bytes as u64) < BYTES && text.contains(SECTION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_projects_own_deepspeed_files_are_found_and_nobody_elses() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let file = r#"{"zero_optimization": {"stage": 1}}"#;
        for name in ["ds.json", "conf/b.json", "conf/a.json", "a/b/c/d/deep.json"] {
            write(name, file);
        }
        for name in [".hidden/x.json", "node_modules/x.json", "a/b/c/d/e/deeper.json", "x.txt"] {
            write(name, file);
        }
        write("venv/pyvenv.cfg", "");
        write("venv/lib/x.json", file);
        write("package.json", "{}");
        write("large.json", &format!("{file}{}", " ".repeat(BYTES as usize)));
        std::os::unix::fs::symlink(place.path().join("ds.json"), place.path().join("link.json"))
            .unwrap();
        let found = deepspeed_files(place.path()).unwrap();
        let expected = ["a/b/c/d/deep.json", "conf/a.json", "conf/b.json", "ds.json"];
        assert_eq!(found.files, expected);
        assert!(found.more == 0 && !found.is_cut);
        for number in 0..FILES {
            write(&format!("conf/c{number}.json"), file);
        }
        let found = deepspeed_files(place.path()).unwrap();
        assert_eq!((found.files.len(), found.more), (FILES, expected.len()));
    }
}
