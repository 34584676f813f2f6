//! Copies from a GPU to the host, in parallel to the computation.

use anyhow::{Result, ensure};
use cudarc::driver::sys;
use tch::{Device, Tensor};

use super::stream::{SideStream, StreamEvent};

/// A running copy from a GPU to the host, which keeps its two tensors alive.
#[must_use = "the tensor on the host is incomplete until the copy has been waited for"]
pub struct HostCopy {
    end: StreamEvent,
    _source: Tensor,
    _target: Tensor,
}

impl HostCopy {
    /// Starts a copy of `source`, on the GPU, to `target`, in pinned host memory. The copy runs after all work that is
    /// enqueued so far. The tensors must be contiguous and have the same dtype and length.
    pub fn start(stream: &SideStream, source: Tensor, target: &Tensor) -> Result<Self> {
        ensure!(
            source.device().is_cuda() && target.device() == Device::Cpu,
            "cannot copy from {:?} to {:?}: only copies from a GPU to the host are supported",
            source.device(),
            target.device(),
        );
        let is_flat = source.is_contiguous() && target.is_contiguous();
        ensure!(
            is_flat && source.kind() == target.kind() && source.numel() == target.numel(),
            "{source:?} and {target:?} differ in dtype or size, or are not contiguous"
        );
        let bytes = source.numel() * source.kind().elt_size_in_bytes();
        stream.follow_compute()?;
        // SAFETY: both tensors are contiguous, `bytes` long, and kept until the copy is over.
        unsafe {
            sys::cuMemcpyDtoHAsync_v2(
                target.data_ptr(),
                source.data_ptr() as sys::CUdeviceptr,
                bytes,
                stream.raw(),
            )
            .result()?;
        }
        let end = stream.mark()?;
        Ok(Self { end, _source: source, _target: target.shallow_clone() })
    }

    /// Waits until the copy is complete.
    pub fn wait(self) -> Result<()> {
        self.end.wait()
    }
}
