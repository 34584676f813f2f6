//! Safe wrappers of the C++ shim for the parts of libtorch that tch does not bind.

pub mod autograd;
pub mod c10d;
pub mod memory;

use std::ffi::{CStr, c_char};

use anyhow::{Error, anyhow};
use tch::Tensor;

/// A pointer to the `at::Tensor` in tch's handle.
pub(super) type TensorPtr = *const std::ffi::c_void;

// Every crate with this module links the C++ shim and libtorch; `build.rs` sets their paths.
#[link(name = "zprobe_shim", kind = "static")]
#[link(name = "torch_cpu")]
#[link(name = "c10")]
#[link(name = "stdc++")]
unsafe extern "C" {
    fn zp_last_error() -> *const c_char;
    fn zp_torch_version() -> *const c_char;
    fn zp_loaded_release() -> *const c_char;
}

/// The release of the libtorch that this binary was built against, for example `2.11.0`.
pub fn torch_version() -> String {
    // SAFETY: the shim returns a static, NUL-terminated string.
    unsafe { CStr::from_ptr(zp_torch_version()) }.to_string_lossy().into_owned()
}

/// The release of the loaded libtorch, from its build settings; empty if the settings name no release.
pub fn loaded_release() -> String {
    // SAFETY: the shim returns NUL-terminated text that lives until this thread's next call.
    unsafe { CStr::from_ptr(zp_loaded_release()) }.to_string_lossy().into_owned()
}

/// The error of the shim's last failed call on this thread.
fn last_error() -> Error {
    // SAFETY: the shim returns a NUL-terminated string that lives until this thread's next failure.
    let message = unsafe { CStr::from_ptr(zp_last_error()) };
    anyhow!("{}", message.to_string_lossy().trim_end())
}

fn check(status: i32) -> anyhow::Result<()> {
    if status == 0 { Ok(()) } else { Err(last_error()) }
}

fn ptr(tensor: &Tensor) -> TensorPtr {
    tensor.as_ptr().cast()
}
