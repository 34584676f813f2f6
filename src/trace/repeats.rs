//! Where the repeats of a run lie.

use std::path::{Path, PathBuf};

use super::TRACE_FILE;

/// Directory of repeat `number`, from 0, in the directory of the whole run.
pub fn repeat_dir(run_dir: &Path, number: usize) -> PathBuf {
    run_dir.join(format!("repeat-{number}"))
}

/// Directories that hold the traces of a run: those of its repeats, in order, or the run's own.
pub fn trace_dirs(run_dir: &Path) -> Vec<PathBuf> {
    let has_trace = |dir: &PathBuf| dir.join(TRACE_FILE).exists();
    let repeats: Vec<PathBuf> =
        (0..).map(|number| repeat_dir(run_dir, number)).take_while(has_trace).collect();
    if repeats.is_empty() { vec![run_dir.to_owned()] } else { repeats }
}

/// Whether a directory holds a recorded run.
pub fn is_recorded(run_dir: &Path) -> bool {
    trace_dirs(run_dir).iter().any(|dir| dir.join(TRACE_FILE).exists())
}
