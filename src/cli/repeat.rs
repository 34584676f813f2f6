//! `zprobe run --repeat N`: the same run over and over.

use std::path::Path;

use anyhow::Result;
use zprobe::spec::RunSpec;
use zprobe::trace::repeat_dir;

use super::runner::Runner;
use super::workers::progress;
use super::{console, verbosity};

/// Makes `count` runs of `spec`, each in a directory of its own in `run_dir`, until the user
/// interrupts one.
pub fn run(
    mut runner: Runner,
    spec: &RunSpec,
    count: usize,
    run_id: &str,
    run_dir: &Path,
) -> Result<()> {
    let line = progress(count)?;
    console::message(&line, "repeats");
    for number in 0..count {
        let run_id = format!("{run_id}-{number}");
        let dir = repeat_dir(run_dir, number);
        match runner.run(spec, &run_id, &dir, &mut |_| {}) {
            Ok(true) => {}
            Ok(false) => break,
            // What the repeats before it have left is not lost.
            Err(error) if number > 0 => {
                let _ = std::fs::remove_dir_all(&dir);
                line.suspend(|| {
                    verbosity::say(format_args!("warning: no repeat {number}: {error:#}"));
                });
                break;
            }
            Err(error) => return Err(error),
        }
        line.inc(1);
    }
    line.finish_and_clear();
    Ok(())
}
