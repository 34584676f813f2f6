//! The interpreter of tests on real engines, and how much of them is tried.

use std::path::PathBuf;

/// The interpreter under test.
pub fn python() -> PathBuf {
    std::env::var_os("ZPROBE_TEST_PYTHON")
        .expect("ZPROBE_TEST_PYTHON names an interpreter that has torch and DeepSpeed")
        .into()
}

/// Returns true if everything is tried, and not only a part that stands for it.
pub fn full() -> bool {
    std::env::var_os("ZPROBE_TEST_FULL").is_some()
}
