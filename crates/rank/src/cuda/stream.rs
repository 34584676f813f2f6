//! A stream beside the one that computes.

use std::sync::Arc;

use anyhow::{Result, bail};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use tch::Device;

/// A stream of a CUDA device for work beside the computation: collectives, and copies to the host.
///
/// libtorch computes on the legacy default stream of the device's primary context unless another
/// one is chosen, which never happens here.
pub struct SideStream {
    compute: Arc<CudaStream>,
    side: Arc<CudaStream>,
}

/// A point in a side stream.
pub struct Mark {
    event: CudaEvent,
    compute: Arc<CudaStream>,
}

impl SideStream {
    /// A stream of `device`, whose context becomes this thread's.
    pub fn new(device: Device) -> Result<Self> {
        let Device::Cuda(ordinal) = device else { bail!("{device:?} has no streams") };
        let context = CudaContext::new(ordinal)?;
        Ok(Self { compute: context.default_stream(), side: context.new_stream()? })
    }

    /// Makes later work in this stream wait for all computation so far. Makes the device's context
    /// current on this thread, because autograd runs backward on threads of its own.
    pub fn follow_compute(&self) -> Result<()> {
        Ok(self.side.join(&self.compute)?)
    }

    /// Marks all work that was put into the stream so far.
    pub fn mark(&self) -> Result<Mark> {
        let event = self.side.record_event(None)?;
        Ok(Mark { event, compute: Arc::clone(&self.compute) })
    }

    /// The handle of the stream for CUDA and NCCL.
    pub fn raw(&self) -> sys::CUstream {
        self.side.cu_stream()
    }
}

impl Mark {
    /// Makes later computation wait for the point; this thread does not wait.
    pub fn block_compute(&self) -> Result<()> {
        Ok(self.compute.wait(&self.event)?)
    }

    /// Waits for the point on this thread.
    pub fn wait(&self) -> Result<()> {
        Ok(self.event.synchronize()?)
    }
}
