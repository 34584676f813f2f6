//! A lock that allows one provisioning at a time.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

/// Waits until no other process provisions below `home`. The lock ends when the returned file is closed, at
/// the latest with the process.
pub fn acquire(home: &Path) -> Result<File> {
    let path = home.join(".lock");
    let context = || format!("cannot lock {}", path.display());
    let file = File::create(&path).with_context(context)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("another process is downloading libtorch: waiting for it");
            file.lock().with_context(context)?;
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(context),
    }
    Ok(file)
}
