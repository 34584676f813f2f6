//! The task `cargo xtask chaos`.

use anyhow::Result;

use crate::chaos::{self, Options};
use crate::tasks;

/// Builds `zprobe` and `zprobe-rank`, and runs the fault campaign on them.
pub fn chaos(options: &Options) -> Result<()> {
    tasks::build()?;
    chaos::run(options)
}
