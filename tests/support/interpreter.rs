//! The interpreter of the tests of real engines, and the extent of these tests.

use std::path::PathBuf;

/// The interpreter under test.
pub fn python() -> PathBuf {
    std::env::var_os("ZPROBE_TEST_PYTHON")
        .expect("ZPROBE_TEST_PYTHON names an interpreter that has torch and DeepSpeed")
        .into()
}

/// Returns true if the tests try everything, and not only a representative part.
pub fn full() -> bool {
    std::env::var_os("ZPROBE_TEST_FULL").is_some()
}
