//! Fills uninitialised memory with NaN, so that a read of such memory shows in the results.

use anyhow::Result;

use super::check;

unsafe extern "C" {
    fn zp_poison_memory() -> i32;
}

/// Makes torch fill all newly allocated memory of this process with NaN from now on.
pub fn poison() -> Result<()> {
    // SAFETY: the function only sets flags of torch's global context, before other code of this rank runs.
    check(unsafe { zp_poison_memory() })
}
