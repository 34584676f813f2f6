//! Optimizer states in the host's memory: gradients are copied there before the step.
//!
//! DeepSpeed's `async_inplace_copy_grad_to_fp32_buffer_from_gpu` (`runtime/zero/stage_1_and_2.py`).

use std::cell::RefCell;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe::spec::{Fault, Offload};

use super::context::Context;
use crate::cuda::{HostCopy, SideStream};

/// The gradient of this rank's partition in the host's memory, in fp32.
pub struct HostGradient {
    /// Pinned where it is filled from a GPU.
    buffer: Tensor,
    /// Copies from a GPU go beside the computation.
    stream: Option<SideStream>,
    /// The copy that goes on.
    going: RefCell<Option<HostCopy>>,
    copies: usize,
    /// Whether only the first copy is made.
    is_stale: bool,
}

impl HostGradient {
    /// The buffer of a run that offloads; none for the others.
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
        let is_stale = context.has(Fault::StaleHostBuffer);
        Ok(Some(Self { buffer, stream, going: RefCell::new(None), copies: 0, is_stale }))
    }

    /// Copies the averaged gradient, whole: what was there before is gone. From a GPU, returns before
    /// that is done.
    pub fn copy_from(&mut self, averaged: &Tensor) -> Result<()> {
        self.copies += 1;
        if self.is_stale && self.copies > 1 {
            return Ok(());
        }
        self.wait()?;
        let Some(stream) = &self.stream else { return Ok(self.buffer.f_copy_(averaged)?) };
        // A tensor of its own: the averaged gradient is written to while the copy goes on.
        let source = averaged.f_to_dtype(Kind::Float, false, true)?;
        self.going.replace(Some(HostCopy::start(stream, source, &self.buffer)?));
        Ok(())
    }

    /// What was copied last.
    pub fn gradient(&self) -> Result<Tensor> {
        self.wait()?;
        Ok(self.buffer.copy())
    }

    /// Waits for the copy that goes on, if one does.
    fn wait(&self) -> Result<()> {
        self.going.take().map_or(Ok(()), HostCopy::wait)
    }
}
