//! The task `cargo xtask run`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::tasks;
use crate::workspace;

/// Builds both programs, then becomes `zprobe run`.
pub fn run(args: &[OsString]) -> Result<()> {
    tasks::build()?;
    let zprobe = workspace::zprobe()?;
    // Replacing this process leaves signals, the terminal and the exit code to zprobe itself.
    let error = Command::new(&zprobe).arg("run").args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", zprobe.display()))
}
