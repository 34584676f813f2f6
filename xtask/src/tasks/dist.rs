//! The task `cargo xtask dist`.

use anyhow::Result;

use crate::dist;
use crate::host::Host;
use crate::tasks;
use crate::workspace;

/// Builds both programs and the files that users install, and prints the directory of the files.
pub fn dist() -> Result<()> {
    tasks::build()?;
    let dir = dist::build(&Host::from_env(), &workspace::rank_program()?, true)?;
    println!("{}", dir.display());
    Ok(())
}
