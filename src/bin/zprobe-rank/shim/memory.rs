//! Memory that nobody has written to.

use anyhow::Result;

use super::check;

unsafe extern "C" {
    fn zp_poison_memory() -> i32;
}

/// From now on, in this process, memory that torch hands out holds NaN until it is written to.
pub fn poison() -> Result<()> {
    // SAFETY: sets flags of torch's global context, before anything else of this rank runs.
    check(unsafe { zp_poison_memory() })
}
