//! Gradients that differ from the reduced ones when the optimizer gets them.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::Injected;
use super::flow::Slip;
use crate::engine::context::Context;
use crate::engine::flat::narrow;
use crate::engine::flow::GradientFlow;

/// Content of padding that was not set to zero.
const GARBAGE: f64 = 1e4;

/// Delay of a late copy, much longer than a step takes to reach its optimizer.
const LATE: Duration = Duration::from_millis(20);

/// Changes this rank's partition of the gradient.
type Change = Box<dyn FnMut(Tensor) -> Result<Tensor>>;

/// The slip of a flow whose gradient changes when it is handed over.
pub fn slip<F: GradientFlow>(fault: Injected, context: &Rc<Context>) -> Option<Box<dyn Slip<F>>> {
    let change: Change = match fault? {
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
    Some(Box::new(Changed(change)))
}

/// Slip that changes the gradient when it is handed over.
struct Changed(Change);

impl<F: GradientFlow> Slip<F> for Changed {
    fn partition_gradient(&mut self, flow: &mut F) -> Result<Tensor> {
        (self.0)(flow.partition_gradient()?)
    }
}

/// Slip that keeps the gradient after the step.
struct NeverZeroed;

impl<F: GradientFlow> Slip<F> for NeverZeroed {
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

/// Locks the host tensor, so that a copy that nobody waits for is visible whole or not at all.
fn locked(host: &Mutex<Tensor>) -> MutexGuard<'_, Tensor> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies on a thread while the step goes on. By chance, every other copy is delayed: without a
/// delay, the machine would decide how often a copy without a wait is late.
fn copy_without_waiting(host: &Arc<Mutex<Tensor>>, source: Tensor) {
    // Chance comes from the clock: ranks that were forked from one process share every seed.
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
