//! The events file of TensorBoard, which the user's own Python writes: only TensorBoard's package knows the format.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::python;

/// The module and package that writes the events.
pub const PACKAGE: &str = "tensorboard";

/// The script that reads the document of [`zprobe_report::render::tensorboard`] and writes the events.
const SCRIPT: &str = include_str!("write_events.py");

/// Writes the events of a run into `dir`, which is created. A file of an earlier export of the same run is replaced.
///
/// # Errors
/// When the directory cannot be created, or Python cannot write the events.
pub fn write(interpreter: &Path, document: &str, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let dir = std::path::absolute(dir).context("cannot find the working directory")?;
    let what = || format!("{} cannot write TensorBoard's events", interpreter.display());
    let mut process = python::command(interpreter)
        .args(["-c", SCRIPT])
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(what)?;
    // If Python ends before it has read the document, its own words say why.
    let _ = process.stdin.take().map(|mut stdin| stdin.write_all(document.as_bytes()));
    let output = process.wait_with_output().with_context(what)?;
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.trim_end().lines().last().unwrap_or_default();
    ensure!(output.status.success(), "{}: {last}", what());
    Ok(())
}
