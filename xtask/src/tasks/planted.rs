//! The task `cargo xtask planted`.

use anyhow::Result;

use crate::planted::{self, Options};
use crate::tasks;

/// Builds `zprobe`, which needs no libtorch for real engines, and plants bugs in real engines.
pub fn planted(options: &Options) -> Result<()> {
    tasks::build_launcher()?;
    planted::run(options)
}
