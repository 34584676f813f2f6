//! Loads shared libraries on demand.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Error, Result, anyhow, ensure};
use nix::libc::{RTLD_GLOBAL, RTLD_NOW, dlerror, dlopen};

/// `RTLD_DI_ORIGIN` of `dlfcn.h`, which requests the directory of a library.
const DIRECTORY: c_int = 6;

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, info: *mut c_void) -> c_int;
}

/// A shared library, which is never unloaded.
pub struct Library {
    handle: *mut c_void,
}

impl Library {
    /// Loads a library and makes its symbols visible to all other libraries. A name without a slash is looked up like a
    /// dependency; a library that is already loaded is not loaded again.
    pub fn open(name: &str) -> Result<Self> {
        let name = CString::new(name)?;
        // SAFETY: the name outlives the call. The library's initialisers run; those of libtorch and NCCL only register
        // their contents.
        let handle = unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_GLOBAL) };
        if handle.is_null() { Err(last_error()) } else { Ok(Self { handle }) }
    }

    /// The directory of the library's file.
    pub fn directory(&self) -> Result<PathBuf> {
        let mut path: [c_char; 4096] = [0; 4096];
        // SAFETY: the handle is live, because it is never closed; the kernel opens no path longer than this buffer.
        let status = unsafe { dlinfo(self.handle, DIRECTORY, path.as_mut_ptr().cast()) };
        ensure!(status == 0, last_error());
        // SAFETY: the loader has terminated the path with a NUL.
        let path = unsafe { CStr::from_ptr(path.as_ptr()) };
        Ok(OsStr::from_bytes(path.to_bytes()).into())
    }
}

/// The loader's message about its last failure.
fn last_error() -> Error {
    // SAFETY: `dlerror` returns null, or text that lives until the next call on this thread.
    let message = unsafe { dlerror() };
    if message.is_null() {
        return anyhow!("the dynamic loader gave no reason");
    }
    // SAFETY: the message is not null, and lives until the next call on this thread.
    anyhow!("{}", unsafe { CStr::from_ptr(message) }.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_name_and_says_where_it_lies() {
        let directory = Library::open("libc10.so").unwrap().directory().unwrap();
        assert!(directory.join("libc10.so").is_file(), "{}", directory.display());
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = Library::open("libnot_there.so.7").err().unwrap().to_string();
        assert!(error.contains("libnot_there.so.7"), "{error}");
    }
}
