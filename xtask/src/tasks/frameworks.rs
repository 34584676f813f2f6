//! The task `cargo xtask frameworks`.

use anyhow::Result;

use crate::frameworks::{self, Options};
use crate::tasks;

/// Builds `zprobe`, and runs the scripts of the frameworks.
pub fn frameworks(options: &Options) -> Result<()> {
    if !options.page {
        tasks::build_launcher()?;
    }
    frameworks::run(options)
}
