//! The directories of the repeats of a run.

use std::path::{Path, PathBuf};

use super::TRACE_FILE;
use crate::run_dir;

/// The prefix of the names of the repeats' directories.
const PREFIX: &str = "repeat-";

/// Returns the directory of repeat `number`, from 0, inside the directory of the whole run.
pub fn repeat_dir(run_dir: &Path, number: usize) -> PathBuf {
    run_dir.join(format!("{PREFIX}{number}"))
}

/// Returns the directories that hold the traces of a run: the directories of its repeats, in order, or the run
/// directory itself.
pub fn trace_dirs(dir: &Path) -> Vec<PathBuf> {
    // Links are skipped, because they may lead out of the run directory.
    let has_trace = |dir: &PathBuf| run_dir::is_dir(dir) && dir.join(TRACE_FILE).exists();
    let number = |dir: &PathBuf| -> Option<usize> {
        dir.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut repeats: Vec<(usize, PathBuf)> = entries
        .map(|entry| entry.path())
        .filter(has_trace)
        .filter_map(|dir| Some((number(&dir)?, dir)))
        .collect();
    repeats.sort();
    if repeats.is_empty() {
        return vec![dir.to_owned()];
    }
    let mut dirs = Vec::new();
    for (place, (number, repeat)) in repeats.into_iter().enumerate() {
        if number != place {
            // Later repeats exist, so this repeat is missing, and reading its trace will fail.
            dirs.push(repeat_dir(dir, place));
            break;
        }
        dirs.push(repeat);
    }
    dirs
}

/// Returns true if a directory holds a recorded run.
pub fn is_recorded(run_dir: &Path) -> bool {
    trace_dirs(run_dir).iter().any(|dir| dir.join(TRACE_FILE).exists())
}
