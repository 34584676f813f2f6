//! The task `cargo xtask gpu`.

use anyhow::{Result, ensure};

use crate::gpu::{self, Options};
use crate::tasks;

/// Builds both programs, and runs all that zprobe does on GPUs.
pub fn gpu(options: &Options) -> Result<()> {
    tasks::build()?;
    let (table, all_well) = gpu::measure(options)?;
    print!("{table}");
    ensure!(all_well, "a verdict or a weight is not as it should be; see the cells in bold");
    Ok(())
}
