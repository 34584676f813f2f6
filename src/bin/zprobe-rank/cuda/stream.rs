//! A stream beside the one that computes.

use std::sync::Arc;

use anyhow::{Result, bail};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, sys};
use tch::Device;

/// A stream of a CUDA device for what goes on beside the computation: collectives, and copies to
/// the host.
///
/// libtorch computes on the legacy default stream of the device's primary context as long as nobody
/// chooses another, and nobody does here.
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

    /// Lets what is put into it from now on wait for all that was computed so far. Makes the
    /// device's context this thread's: autograd runs backward on threads of its own.
    pub fn follow_compute(&self) -> Result<()> {
        Ok(self.side.join(&self.compute)?)
    }

    /// Marks all that was put into it so far.
    pub fn mark(&self) -> Result<Mark> {
        let event = self.side.record_event(None)?;
        Ok(Mark { event, compute: Arc::clone(&self.compute) })
    }

    /// The stream, as CUDA and NCCL want it.
    pub fn raw(&self) -> sys::CUstream {
        self.side.cu_stream()
    }
}

impl Mark {
    /// Lets what is computed from now on wait for it; this thread does not wait.
    pub fn block_compute(&self) -> Result<()> {
        Ok(self.compute.wait(&self.event)?)
    }

    /// Waits for it.
    pub fn wait(&self) -> Result<()> {
        Ok(self.event.synchronize()?)
    }
}
