//! Bindings of c10d: the TCPStore for the ranks' rendezvous, and the Gloo process group.

use std::ffi::{CString, c_char, c_void};
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::{TensorPtr, check, last_error, ptr};

/// The opaque C++ type `zp_store`.
#[repr(C)]
struct RawStore(c_void);

/// The opaque C++ type `zp_group`.
#[repr(C)]
struct RawGroup(c_void);

/// The opaque C++ type `zp_work`.
#[repr(C)]
struct RawWork(c_void);

unsafe extern "C" {
    fn zp_store_join(
        host: *const c_char,
        port: u16,
        listen_fd: i32,
        timeout_ms: i64,
    ) -> *mut RawStore;
    fn zp_store_free(store: *mut RawStore);
    fn zp_store_set(store: *mut RawStore, key: *const c_char, data: *const u8, len: usize) -> i32;
    fn zp_store_delete(store: *mut RawStore, key: *const c_char) -> i32;
    fn zp_store_has(store: *mut RawStore, key: *const c_char) -> i32;
    fn zp_store_wait_get(
        store: *mut RawStore,
        keys: *const *const c_char,
        keys_len: usize,
        timeout_ms: i64,
        sink: extern "C" fn(*mut c_void, usize, *const u8, usize),
        context: *mut c_void,
    ) -> i32;
    fn zp_gloo_new(
        store: *mut RawStore,
        rank: i32,
        world_size: i32,
        interface: *const c_char,
        timeout_ms: i64,
    ) -> *mut RawGroup;
    fn zp_group_free(group: *mut RawGroup);
    fn zp_all_reduce_sum(group: *mut RawGroup, tensor: TensorPtr) -> *mut RawWork;
    fn zp_reduce_sum(group: *mut RawGroup, tensor: TensorPtr, root: i32) -> *mut RawWork;
    fn zp_reduce_scatter_sum(
        group: *mut RawGroup,
        output: TensorPtr,
        input: TensorPtr,
    ) -> *mut RawWork;
    fn zp_all_gather(group: *mut RawGroup, output: TensorPtr, input: TensorPtr) -> *mut RawWork;
    fn zp_work_wait(work: *mut RawWork) -> i32;
}

/// A client of the run's TCPStore.
pub struct Store(NonNull<RawStore>);

impl Store {
    /// Connects to the store at `host:port`; with `listener` this process also hosts the store on that socket.
    pub fn join(
        host: &str,
        port: u16,
        listener: Option<OwnedFd>,
        timeout: Duration,
    ) -> Result<Self> {
        let c_host = CString::new(host)?;
        // The store's server owns the descriptor from here on.
        let fd = listener.map_or(-1, OwnedFd::into_raw_fd);
        // SAFETY: `c_host` outlives the call.
        let raw = unsafe { zp_store_join(c_host.as_ptr(), port, fd, millis(timeout)) };
        NonNull::new(raw)
            .map(Self)
            .ok_or_else(last_error)
            .with_context(|| format!("cannot join the TCPStore at {host}:{port}"))
    }

    /// Sets the value of a key.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = CString::new(key)?;
        // SAFETY: the store is live; key and value outlive the call.
        check(unsafe { zp_store_set(self.0.as_ptr(), key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Deletes a key if the key exists.
    pub fn delete(&self, key: &str) -> Result<()> {
        let key = CString::new(key)?;
        // SAFETY: the store is live; the key outlives the call.
        check(unsafe { zp_store_delete(self.0.as_ptr(), key.as_ptr()) })
    }

    /// True if a key exists.
    pub fn has(&self, key: &str) -> Result<bool> {
        let key = CString::new(key)?;
        // SAFETY: the store is live; the key outlives the call.
        match unsafe { zp_store_has(self.0.as_ptr(), key.as_ptr()) } {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(last_error()),
        }
    }

    /// Waits until all keys exist, and returns their values.
    pub fn wait_get(&self, keys: &[String], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        extern "C" fn sink(context: *mut c_void, index: usize, data: *const u8, len: usize) {
            // SAFETY: `context` points to the vector `values` below.
            let values = unsafe { &mut *context.cast::<Vec<Vec<u8>>>() };
            // An empty value may come as a null pointer.
            if len > 0 {
                // SAFETY: `data` points to `len` bytes that are valid during this call.
                values[index] = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            }
        }
        let names: Vec<CString> =
            keys.iter().map(|key| CString::new(key.as_str())).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let mut values = vec![Vec::new(); keys.len()];
        // SAFETY: the store is live; `names` and `values` outlive the call; `sink` is called only with indices below
        // `keys.len()`.
        check(unsafe {
            zp_store_wait_get(
                self.0.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                millis(timeout),
                sink,
                (&raw mut values).cast(),
            )
        })?;
        Ok(values)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the store was created by `zp_store_join`, and is freed once.
        unsafe { zp_store_free(self.0.as_ptr()) }
    }
}

/// c10d's `ProcessGroupGloo` on a network interface.
pub struct GlooBackend(NonNull<RawGroup>);

impl GlooBackend {
    /// Connects to all other ranks of the run.
    pub fn new(
        store: &Store,
        rank: usize,
        world_size: usize,
        interface: &str,
        timeout: Duration,
    ) -> Result<Self> {
        let (rank, world_size) = (i32::try_from(rank)?, i32::try_from(world_size)?);
        let interface = CString::new(interface)?;
        let (store, interface) = (store.0.as_ptr(), interface.as_ptr());
        // SAFETY: the store and the interface's name outlive the call.
        let raw = unsafe { zp_gloo_new(store, rank, world_size, interface, millis(timeout)) };
        NonNull::new(raw)
            .map(Self)
            .ok_or_else(last_error)
            .context("cannot connect the Gloo process group")
    }

    /// Starts to sum `tensor` over all ranks, in place.
    pub fn all_reduce_sum(&self, tensor: &Tensor) -> Result<BackendWork> {
        // SAFETY: group and tensor are live.
        BackendWork::started(unsafe { zp_all_reduce_sum(self.0.as_ptr(), ptr(tensor)) })
    }

    /// Starts to sum `tensor` over all ranks, in place on rank `root`.
    pub fn reduce_sum(&self, tensor: &Tensor, root: usize) -> Result<BackendWork> {
        let root = i32::try_from(root)?;
        // SAFETY: group and tensor are live.
        BackendWork::started(unsafe { zp_reduce_sum(self.0.as_ptr(), ptr(tensor), root) })
    }

    /// Starts to sum `input` over all ranks; `output` is this rank's part of the sum.
    pub fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<BackendWork> {
        let (output, input) = (ptr(output), ptr(input));
        // SAFETY: group and tensors are live.
        BackendWork::started(unsafe { zp_reduce_scatter_sum(self.0.as_ptr(), output, input) })
    }

    /// Starts to concatenate the `input` tensors of all ranks in `output`.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<BackendWork> {
        // SAFETY: group and tensors are live.
        BackendWork::started(unsafe { zp_all_gather(self.0.as_ptr(), ptr(output), ptr(input)) })
    }
}

/// A running operation, which keeps its tensors alive.
#[must_use = "an operation may still write until it is waited for"]
pub struct BackendWork(NonNull<RawWork>);

impl BackendWork {
    fn started(raw: *mut RawWork) -> Result<Self> {
        NonNull::new(raw).map(Self).ok_or_else(last_error)
    }

    /// Waits until the operation has completed on this rank.
    pub fn wait(self) -> Result<()> {
        // SAFETY: the shim created the operation, and frees it once, here.
        check(unsafe { zp_work_wait(self.0.as_ptr()) })
    }
}

impl Drop for GlooBackend {
    fn drop(&mut self) {
        // SAFETY: the group was created by `zp_gloo_new`, and is freed once.
        unsafe { zp_group_free(self.0.as_ptr()) }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
