//! Faults that change the reduced gradient before the optimizer gets it.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::Injected;
use super::flow::FlowFault;
use crate::engine::context::Context;
use crate::engine::flat::narrow;
use crate::engine::flow::GradientFlow;

/// The value in padding that was not set to zero.
const GARBAGE: f64 = 1e4;

/// The delay of a late copy, much longer than the time from the start of the copy to the optimizer step.
const LATE: Duration = Duration::from_millis(20);

/// A function that changes this rank's partition of the gradient.
type PartitionChange = Box<dyn FnMut(Tensor) -> Result<Tensor>>;

/// Returns the implementation of a fault that changes the optimizer's gradient, or keeps the gradient after the step;
/// `None` for other faults.
pub fn flow_fault<F: GradientFlow>(
    fault: Injected,
    context: &Rc<Context>,
) -> Option<Box<dyn FlowFault<F>>> {
    let change: PartitionChange = match fault? {
        Fault::SlicesSwapped => Box::new(|gradient| {
            let half = gradient.size1()? / 2;
            let swapped = [gradient.f_narrow(0, half, half)?, gradient.f_narrow(0, 0, half)?];
            gradient.f_narrow(0, 0, 2 * half)?.f_copy_(&Tensor::f_cat(&swapped, 0)?)?;
            Ok(gradient)
        }),
        Fault::PartitionOffset => Box::new(|gradient| Ok(gradient.f_roll([-1], [0])?)),
        Fault::PaddingNotZeroed => {
            let context = Rc::clone(context);
            Box::new(move |gradient| fill_padding(&context, gradient))
        }
        Fault::StaleHostBuffer => {
            let mut first: Option<Tensor> = None;
            Box::new(move |gradient| Ok(first.get_or_insert(gradient).copy()))
        }
        Fault::HostCopyRaces => {
            let mut host: Option<Arc<Mutex<Tensor>>> = None;
            Box::new(move |gradient| {
                let zeros = || Arc::new(Mutex::new(gradient.zeros_like()));
                let host = host.get_or_insert_with(zeros);
                copy_without_waiting(host, gradient);
                Ok(locked(host).copy())
            })
        }
        Fault::AccumulatorNotZeroed => return Some(Box::new(NeverZeroed)),
        _ => return None,
    };
    Some(Box::new(ChangedAtHandover(change)))
}

/// The fault that changes the gradient when the optimizer gets it.
struct ChangedAtHandover(PartitionChange);

impl<F: GradientFlow> FlowFault<F> for ChangedAtHandover {
    fn partition_gradient(&mut self, flow: &mut F) -> Result<Tensor> {
        (self.0)(flow.partition_gradient()?)
    }
}

/// The fault that never sets the gradient to zero after a step.
struct NeverZeroed;

impl<F: GradientFlow> FlowFault<F> for NeverZeroed {
    fn zero_grad(&mut self, _flow: &mut F) -> Result<()> {
        Ok(())
    }
}

fn fill_padding(context: &Context, gradient: Tensor) -> Result<Tensor> {
    let mut start = 0;
    for segment in context.partitioning.layout(context.settings.owner) {
        let range = start..start + segment.len;
        start = range.end;
        if segment.param.is_none() {
            let _ = narrow(&gradient, range)?.f_fill_(GARBAGE)?;
        }
    }
    Ok(gradient)
}

/// Locks the host tensor, so that a copy that nothing waits for is visible completely or not at all.
fn locked(host: &Mutex<Tensor>) -> MutexGuard<'_, Tensor> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies `source` to the host without waiting for late copies. At random, about half of the copies run late, on
/// another thread with a delay. Without the delay, the load of the machine would decide how often a copy is late.
fn copy_without_waiting(host: &Arc<Mutex<Tensor>>, source: Tensor) {
    // The clock is the source of randomness, because ranks that are forked from one process share every seed.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if now.subsec_micros().is_multiple_of(2) {
        locked(host).copy_(&source);
        return;
    }
    let host = Arc::clone(host);
    thread::spawn(move || {
        thread::sleep(LATE);
        locked(&host).copy_(&source);
    });
}
