//! The task `cargo xtask planted`.

use anyhow::Result;

use crate::planted::{self, Options};
use crate::tasks;

/// Builds both programs, and plants bugs in real engines.
pub fn planted(options: &Options) -> Result<()> {
    tasks::build()?;
    planted::run(options)
}
