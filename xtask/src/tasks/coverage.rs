//! The task `cargo xtask coverage`.

use anyhow::Result;

use crate::planted::Options;
use crate::{coverage, tasks};

/// Builds `zprobe`, which needs no libtorch for real engines, and counts what each probe finds.
pub fn coverage(options: &Options) -> Result<()> {
    tasks::build_launcher()?;
    coverage::run(options)
}
