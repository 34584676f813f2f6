//! Uninitialised memory.

use anyhow::Result;

use super::check;

unsafe extern "C" {
    fn zp_poison_memory() -> i32;
}

/// Makes torch fill the memory that it hands out with NaN, from now on and in this process.
pub fn poison() -> Result<()> {
    // SAFETY: sets flags of torch's global context, before anything else of this rank runs.
    check(unsafe { zp_poison_memory() })
}
