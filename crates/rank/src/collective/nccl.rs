//! Collectives over NCCL, on a CUDA stream of their own.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cudarc::nccl::result::{self, NcclError, NcclStatus};
use cudarc::nccl::sys;
use tch::{Device, Kind, Tensor};

use super::{CollectiveBackend, Operation};
use crate::cuda::{SideStream, StreamEvent};
use crate::shim::c10d::Store;

/// The key of NCCL's unique id in the TCPStore.
const UNIQUE_ID: &str = "nccl/unique-id";

/// An NCCL communicator, which is never destroyed before the process ends.
pub struct Nccl {
    communicator: sys::ncclComm_t,
    stream: SideStream,
}

/// An NCCL operation that was put into the side stream.
struct Enqueued {
    end: StreamEvent,
    is_awaited: Cell<bool>,
    /// The tensors of the operation. libtorch may reuse the memory of a dropped tensor, so they must be kept until the
    /// compute stream waits for the operation.
    _tensors: Vec<Tensor>,
}

impl Nccl {
    /// Connects to all other ranks. Each rank must have a GPU of its own.
    pub fn new(
        store: &Store,
        rank: usize,
        world_size: usize,
        timeout: Duration,
        device: Device,
    ) -> Result<Self> {
        // SAFETY: the function only looks for the library.
        let is_there = unsafe { sys::is_culib_present() };
        ensure!(is_there, "no library libnccl.so on the library path; use --backend gloo");
        // NCCL uses the device of the thread's current context, which this call sets.
        let stream = SideStream::new(device)?;
        let id = exchange_id(store, rank, timeout)?;
        let (ranks, rank) = (i32::try_from(world_size)?, i32::try_from(rank)?);
        let mut communicator = MaybeUninit::uninit();
        // SAFETY: the pointer is valid, and the communicator is read only if the call has initialised it.
        let communicator = unsafe {
            checked(result::comm_init_rank(communicator.as_mut_ptr(), ranks, id, rank))
                .context("cannot connect the NCCL communicator")?;
            communicator.assume_init()
        };
        Ok(Self { communicator, stream })
    }

    /// Puts an operation on `tensors` into the side stream. The operation runs after all computation so far.
    fn enqueue(
        &self,
        tensors: &[&Tensor],
        operation: impl FnOnce(sys::ncclComm_t, sys::cudaStream_t) -> Result<NcclStatus, NcclError>,
    ) -> Result<Box<dyn Operation>> {
        for tensor in tensors {
            ensure!(
                tensor.device().is_cuda() && tensor.is_contiguous(),
                "NCCL needs contiguous tensors on a GPU, not {tensor:?}"
            );
        }
        self.stream.follow_compute()?;
        checked(operation(self.communicator, self.stream.raw().cast()))?;
        Ok(Box::new(Enqueued {
            end: self.stream.mark()?,
            is_awaited: Cell::new(false),
            _tensors: tensors.iter().map(|tensor| tensor.shallow_clone()).collect(),
        }))
    }
}

impl CollectiveBackend for Nccl {
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Box<dyn Operation>> {
        let (data, len, dtype) = (tensor.data_ptr(), tensor.numel(), dtype_of(tensor.kind())?);
        let sum = sys::ncclRedOp_t::ncclSum;
        // SAFETY: `data` points to `len` elements on the GPU, which are kept until the operation is over.
        self.enqueue(&[tensor], |communicator, stream| unsafe {
            result::all_reduce(data, data, len, dtype, sum, communicator, stream)
        })
    }

    fn reduce_sum(&self, tensor: &Tensor, root: usize) -> Result<Box<dyn Operation>> {
        let (data, len, dtype) = (tensor.data_ptr(), tensor.numel(), dtype_of(tensor.kind())?);
        let (sum, root) = (sys::ncclRedOp_t::ncclSum, i32::try_from(root)?);
        // SAFETY: `data` points to `len` elements on the GPU, which are kept until the operation is over.
        self.enqueue(&[tensor], |communicator, stream| unsafe {
            result::reduce(data, data, len, dtype, sum, root, communicator, stream)
        })
    }

    fn reduce_scatter_sum(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Operation>> {
        let (to, from) = (output.data_ptr(), input.data_ptr());
        let (len, dtype) = (output.numel(), dtype_of(output.kind())?);
        let sum = sys::ncclRedOp_t::ncclSum;
        // SAFETY: the tensors are on the GPU and kept until the operation is over; `from` has `len` elements for each
        // rank.
        self.enqueue(&[output, input], |communicator, stream| unsafe {
            result::reduce_scatter(from, to, len, dtype, sum, communicator, stream)
        })
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Box<dyn Operation>> {
        let (to, from) = (output.data_ptr(), input.data_ptr());
        let (len, dtype) = (input.numel(), dtype_of(input.kind())?);
        // SAFETY: the tensors are on the GPU and kept until the operation is over; `to` has room for `len` elements
        // from each rank.
        self.enqueue(&[output, input], |communicator, stream| unsafe {
            result::all_gather(from, to, len, dtype, communicator, stream)
        })
    }
}

impl Operation for Enqueued {
    /// Makes the compute stream wait for the operation, so that later work in the compute stream sees the result. This
    /// thread does not wait.
    fn wait(self: Box<Self>) -> Result<()> {
        self.is_awaited.set(true);
        self.end.block_compute()
    }
}

/// Dropping an operation makes the compute stream wait, so that the memory is not reused before the operation has
/// ended.
impl Drop for Enqueued {
    fn drop(&mut self) {
        if !self.is_awaited.get() {
            // An error means that the CUDA context is gone, and with it the memory.
            let _ = self.end.block_compute();
        }
    }
}

/// The unique id of the communicator, which rank 0 creates and the other ranks read from the store.
fn exchange_id(store: &Store, rank: usize, timeout: Duration) -> Result<sys::ncclUniqueId> {
    if rank == 0 {
        let id =
            result::get_uniqueid().map_err(explained).context("NCCL cannot make a unique id")?;
        store.set(UNIQUE_ID, &id.internal.map(c_char::cast_unsigned))?;
        return Ok(id);
    }
    let values = store
        .wait_get(&[UNIQUE_ID.to_owned()], timeout)
        .context("rank 0 could not make an NCCL communicator")?;
    let Some(bytes) = values.first().and_then(|bytes| <[u8; 128]>::try_from(&bytes[..]).ok())
    else {
        bail!("the NCCL unique id of rank 0 has another size than this rank's NCCL expects");
    };
    Ok(sys::ncclUniqueId { internal: bytes.map(u8::cast_signed) })
}

/// The NCCL type of an element type that the engine sends.
fn dtype_of(kind: Kind) -> Result<sys::ncclDataType_t> {
    Ok(match kind {
        Kind::BFloat16 => sys::ncclDataType_t::ncclBfloat16,
        Kind::Half => sys::ncclDataType_t::ncclFloat16,
        Kind::Float => sys::ncclDataType_t::ncclFloat32,
        Kind::Double => sys::ncclDataType_t::ncclFloat64,
        Kind::Int64 => sys::ncclDataType_t::ncclInt64,
        other => bail!("no NCCL type is known for {other:?}"),
    })
}

fn checked(outcome: Result<NcclStatus, NcclError>) -> Result<()> {
    outcome.map(drop).map_err(explained)
}

/// An error with NCCL's own message.
fn explained(NcclError(code): NcclError) -> anyhow::Error {
    let text = |words: *const c_char| {
        // SAFETY: the pointer is null, or points to static text of the library.
        let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) });
        words.map(|words| words.to_string_lossy().into_owned()).unwrap_or_default()
    };
    // SAFETY: the library is loaded, because one of its functions has just failed.
    let (code, last) =
        unsafe { (sys::ncclGetErrorString(code), sys::ncclGetLastError(std::ptr::null_mut())) };
    anyhow!("NCCL: {} {}", text(code), text(last))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;
    use sys::ncclDataType_t as Nccl;

    #[test]
    #[ignore = "needs NCCL on the library path, and no GPU: LD_LIBRARY_PATH with libnccl.so"]
    fn the_unique_id_that_rank_0_makes_reaches_every_rank() {
        let timeout = Duration::from_secs(60);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut listener = Some(listener.into());
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let listener = listener.take();
                thread::spawn(move || {
                    let host = Ipv4Addr::LOCALHOST.to_string();
                    let store = Store::join(&host, port, listener, timeout).unwrap();
                    let id = exchange_id(&store, rank, timeout).unwrap();
                    // Rank 0 hosts the store, so it must wait for the others.
                    store.set(&format!("left/{rank}"), &[]).unwrap();
                    let everybody: Vec<String> = (0..3).map(|it| format!("left/{it}")).collect();
                    store.wait_get(&everybody, timeout).unwrap();
                    id
                })
            })
            .collect();
        let ids: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().internal).collect();
        assert!(ids[0].iter().any(|byte| *byte != 0) && ids.iter().all(|id| *id == ids[0]));
    }

    #[test]
    fn every_dtype_of_the_engine_has_the_nccl_type_of_its_name() {
        let pairs = [
            (Kind::BFloat16, Nccl::ncclBfloat16),
            (Kind::Half, Nccl::ncclFloat16),
            (Kind::Float, Nccl::ncclFloat32),
            (Kind::Double, Nccl::ncclFloat64),
            (Kind::Int64, Nccl::ncclInt64),
        ];
        for (kind, expected) in pairs {
            assert_eq!(dtype_of(kind).unwrap(), expected);
            assert!(crate::dtype::dtype_name(kind).is_ok(), "the recorder knows {kind:?} too");
        }
        assert!(dtype_of(Kind::Bool).is_err());
    }
}
