//! `cargo xtask chaos`

use anyhow::Result;

use crate::chaos::{self, Options};
use crate::tasks;

/// Builds both programs, and attacks them.
pub fn chaos(options: &Options) -> Result<()> {
    tasks::build()?;
    chaos::run(options)
}
