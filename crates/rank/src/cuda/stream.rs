//! A CUDA stream for work in parallel to the computation.

use std::sync::Arc;

use anyhow::{Result, bail};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use tch::Device;

/// A stream of a CUDA device for collectives and copies to the host, which run in parallel to the computation.
///
/// libtorch computes on the legacy default stream of the device's primary context, because this program never chooses
/// another stream.
pub struct SideStream {
    compute: Arc<CudaStream>,
    side: Arc<CudaStream>,
}

/// A CUDA event: a point in a side stream.
pub struct StreamEvent {
    event: CudaEvent,
    compute: Arc<CudaStream>,
}

impl SideStream {
    /// Creates a stream of `device`, and makes the device's context current on this thread.
    pub fn new(device: Device) -> Result<Self> {
        let Device::Cuda(ordinal) = device else { bail!("{device:?} has no streams") };
        let context = CudaContext::new(ordinal)?;
        Ok(Self { compute: context.default_stream(), side: context.new_stream()? })
    }

    /// Makes later work in this stream wait for all computation so far. Also makes the device's context current on this
    /// thread, because autograd runs the backward pass on threads of its own.
    pub fn follow_compute(&self) -> Result<()> {
        Ok(self.side.join(&self.compute)?)
    }

    /// Records a mark after all work that is in the stream so far.
    pub fn mark(&self) -> Result<StreamEvent> {
        let event = self.side.record_event(None)?;
        Ok(StreamEvent { event, compute: Arc::clone(&self.compute) })
    }

    /// The raw handle of the stream, for CUDA and NCCL.
    pub fn raw(&self) -> sys::CUstream {
        self.side.cu_stream()
    }
}

impl StreamEvent {
    /// Makes later computation wait for the mark; this thread does not wait.
    pub fn block_compute(&self) -> Result<()> {
        Ok(self.compute.wait(&self.event)?)
    }

    /// Blocks this thread until the stream has reached the mark.
    pub fn wait(&self) -> Result<()> {
        Ok(self.event.synchronize()?)
    }
}
