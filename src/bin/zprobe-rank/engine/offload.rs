//! Optimizer states in the host's memory: gradients are copied there before the step.
//!
//! DeepSpeed's `async_inplace_copy_grad_to_fp32_buffer_from_gpu` (`runtime/zero/stage_1_and_2.py`).

use anyhow::Result;
use tch::Tensor;
use zprobe::spec::{Dtype, Fault, Offload};

use super::context::Context;

/// The gradient of this rank's partition in the host's memory, in fp32.
pub struct HostGradient {
    buffer: Tensor,
    copies: usize,
    /// Whether only the first copy is made.
    is_stale: bool,
}

impl HostGradient {
    /// The buffer of a run that offloads; none for the others.
    pub fn of(context: &Context) -> Result<Option<Self>> {
        match context.spec.offload {
            Offload::None => Ok(None),
            Offload::Cpu => Ok(Some(Self {
                buffer: context.partition_zeros(Dtype::Fp32)?,
                copies: 0,
                is_stale: context.has(Fault::StaleHostBuffer),
            })),
        }
    }

    /// Copies the averaged gradient, whole: what was there before is gone.
    pub fn copy_from(&mut self, averaged: &Tensor) -> Result<()> {
        self.copies += 1;
        if self.is_stale && self.copies > 1 {
            return Ok(());
        }
        Ok(self.buffer.f_copy_(averaged)?)
    }

    /// What was copied last.
    pub fn gradient(&self) -> Tensor {
        self.buffer.copy()
    }
}
