//! The task `cargo xtask newest`.

use anyhow::Result;

use crate::newest::{self, Options};
use crate::tasks;

/// Builds `zprobe`, and runs releases that are not in the table yet.
pub fn newest(options: &Options) -> Result<()> {
    tasks::build_launcher()?;
    newest::run(options)
}
