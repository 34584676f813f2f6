//! The task `cargo xtask accuracy`.

use anyhow::Result;

use crate::accuracy::{self, Options};
use crate::tasks;

/// Builds both programs, then measures the accuracy on correct engines.
pub fn accuracy(options: &Options) -> Result<()> {
    tasks::build()?;
    accuracy::run(options)
}
