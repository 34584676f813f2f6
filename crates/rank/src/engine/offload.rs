//! Optimizer offload: gradients are copied to host memory before the step.
//!
//! The module follows DeepSpeed's `async_inplace_copy_grad_to_fp32_buffer_from_gpu`
//! (`runtime/zero/stage_1_and_2.py`).

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe_model::spec::Offload;

use super::context::Context;
use crate::cuda::{HostCopy, SideStream};

/// The gradient of this rank's partition in host memory, in fp32.
pub struct HostGradient {
    /// The buffer in host memory; pinned if the gradient comes from a GPU.
    buffer: Tensor,
    /// The stream in which copies from a GPU run in parallel to the computation; `None` on the CPU.
    stream: Option<SideStream>,
    /// The copy in progress, if there is one.
    running: Option<HostCopy>,
}

impl HostGradient {
    /// Creates the host buffer; `None` if the run does not offload the optimizer.
    pub fn of(context: &Context) -> Result<Option<Self>> {
        if context.spec.offload == Offload::None {
            return Ok(None);
        }
        let numel = i64::try_from(context.partitioning.partition_numel())?;
        let mut buffer = Tensor::f_zeros([numel], (Kind::Float, Device::Cpu))?;
        let stream =
            context.device.is_cuda().then(|| SideStream::new(context.device)).transpose()?;
        if stream.is_some() {
            buffer = buffer.f_pin_memory(context.device)?;
        }
        Ok(Some(Self { buffer, stream, running: None }))
    }

    /// Replaces the content of the host buffer by the averaged gradient. If this gradient is on a GPU, the function
    /// returns before the copy is complete.
    pub fn copy_from(&mut self, averaged: &Tensor) -> Result<()> {
        self.wait()?;
        let Some(stream) = &self.stream else { return Ok(self.buffer.f_copy_(averaged)?) };
        // The source is a separate copy, because the averaged gradient is overwritten while the transfer runs.
        let source = averaged.f_to_dtype(Kind::Float, false, true)?;
        self.running = Some(HostCopy::start(stream, source, &self.buffer)?);
        Ok(())
    }

    /// A copy of the gradient that was last transferred to the host.
    pub fn gradient(&mut self) -> Result<Tensor> {
        self.wait()?;
        Ok(self.buffer.copy())
    }

    /// Waits for the copy in progress, if there is one.
    fn wait(&mut self) -> Result<()> {
        self.running.take().map_or(Ok(()), HostCopy::wait)
    }
}
