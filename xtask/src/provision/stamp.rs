//! The mark of a complete provisioning.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::download::REQUIREMENTS;

/// The file that marks a complete provisioning. It holds the list of provisioned wheels, so that a changed
/// list is provisioned anew.
const STAMP: &str = "requirements.txt";

/// Returns true if `prefix` is complete, and holds the wheels of the current list.
pub fn is_current(prefix: &Path) -> bool {
    fs::read(prefix.join(STAMP)).is_ok_and(|text| text == REQUIREMENTS.as_bytes())
}

/// Marks `prefix` as complete.
pub fn write(prefix: &Path) -> Result<()> {
    let stamp = prefix.join(STAMP);
    fs::write(&stamp, REQUIREMENTS).with_context(|| format!("cannot write {}", stamp.display()))
}
