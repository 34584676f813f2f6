//! `cargo xtask accuracy`

use anyhow::Result;

use crate::accuracy::{self, Options};
use crate::tasks;

/// Builds everything, and runs engines that are right.
pub fn accuracy(options: &Options) -> Result<()> {
    tasks::build()?;
    accuracy::run(options)
}
