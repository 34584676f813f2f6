//! The task `cargo xtask provision`.

use anyhow::Result;

use crate::host::Host;
use crate::libtorch::Libtorch;

/// Makes libtorch ready, and prints its directory.
pub fn provision() -> Result<()> {
    let libtorch = Libtorch::locate(&Host::from_env())?;
    println!("{}", libtorch.dir().display());
    Ok(())
}
