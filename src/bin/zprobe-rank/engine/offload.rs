//! Optimizer states in the host's memory: gradients are copied there before the step.
//!
//! DeepSpeed's `async_inplace_copy_grad_to_fp32_buffer_from_gpu` (`runtime/zero/stage_1_and_2.py`).

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe::spec::{Fault, Offload};

use super::context::Context;
use crate::cuda::{HostCopy, SideStream};

/// How late a copy is that is late: by far longer than a step takes to get to its optimizer.
const LATE: Duration = Duration::from_millis(20);

/// The gradient of this rank's partition in the host's memory, in fp32.
pub struct HostGradient {
    /// Pinned where it is filled from a GPU. Locked, so that a copy that nobody waits for is there
    /// whole or not at all.
    buffer: Arc<Mutex<Tensor>>,
    /// Copies from a GPU go beside the computation.
    stream: Option<SideStream>,
    /// The copy that goes on.
    going: RefCell<Option<HostCopy>>,
    copies: usize,
    /// Whether only the first copy is made.
    is_stale: bool,
    /// Whether nobody waits for a copy.
    races: bool,
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
        Ok(Some(Self {
            buffer: Arc::new(Mutex::new(buffer)),
            stream,
            going: RefCell::new(None),
            copies: 0,
            is_stale: context.has(Fault::StaleHostBuffer),
            races: context.has(Fault::HostCopyRaces),
        }))
    }

    /// Copies the averaged gradient, whole: what was there before is gone. From a GPU, returns before
    /// that is done.
    pub fn copy_from(&mut self, averaged: &Tensor) -> Result<()> {
        self.copies += 1;
        if self.is_stale && self.copies > 1 {
            return Ok(());
        }
        if self.races {
            let source = averaged.f_to_device(Device::Cpu)?.f_to_dtype(Kind::Float, false, true)?;
            copy_without_waiting(&self.buffer, source);
            return Ok(());
        }
        self.wait()?;
        let Some(stream) = &self.stream else {
            return Ok(locked(&self.buffer).f_copy_(averaged)?);
        };
        // A tensor of its own: the averaged gradient is written to while the copy goes on.
        let source = averaged.f_to_dtype(Kind::Float, false, true)?;
        self.going.replace(Some(HostCopy::start(stream, source, &locked(&self.buffer))?));
        Ok(())
    }

    /// What was copied last.
    pub fn gradient(&self) -> Result<Tensor> {
        self.wait()?;
        Ok(locked(&self.buffer).copy())
    }

    /// Waits for the copy that goes on, if one does.
    fn wait(&self) -> Result<()> {
        self.going.take().map_or(Ok(()), HostCopy::wait)
    }
}

fn locked(buffer: &Mutex<Tensor>) -> MutexGuard<'_, Tensor> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies on a thread while the step goes on. Every other copy, by chance, is late; how often one would
/// be that is only not waited for depends on the machine.
fn copy_without_waiting(buffer: &Arc<Mutex<Tensor>>, source: Tensor) {
    // The clock's last digits: ranks that were forked from one process share every seed.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if now.subsec_micros().is_multiple_of(2) {
        locked(buffer).copy_(&source);
        return;
    }
    let buffer = Arc::clone(buffer);
    thread::spawn(move || {
        thread::sleep(LATE);
        locked(&buffer).copy_(&source);
    });
}
