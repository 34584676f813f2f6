//! Faults of buckets: too few or too many gradients, and flushes at the wrong time or never.

use std::rc::Rc;

use anyhow::{Context as _, Result};
use tch::{Kind, Tensor};
use zprobe_model::spec::{Fault, Shape};
use zprobe_model::trace::FlushReason;

use super::Injected;
use super::flow::FlowFault;
use crate::engine::context::{Context, Microbatch};
use crate::engine::flow::GradientFlow as _;
use crate::engine::ipg::IpgBuckets;

/// Returns the implementation of a fault that only a flow through buckets can have; `None` for other faults.
pub fn flow_fault(
    fault: Injected,
    context: &Rc<Context>,
) -> Option<Box<dyn FlowFault<IpgBuckets>>> {
    let context = Rc::clone(context);
    Some(match fault? {
        // A flow that relies on hooks ignores gradients that the hooks have not delivered.
        Fault::DeadHooks => Box::new(Reduces(|buckets| {
            buckets.flush_the_rest()?;
            buckets.finish()
        })),
        Fault::BucketFlushedEarly => Box::new(Reduces(|buckets| {
            buckets.put_the_rest_into_bucket()?;
            if let Some(last) = buckets.bucket().last() {
                let _ = last.shallow_clone().f_zero_()?;
            }
            buckets.flush_the_rest()?;
            buckets.finish()
        })),
        Fault::BucketNeverFlushed => Box::new(Reduces(|buckets| {
            buckets.put_the_rest_into_bucket()?;
            drop(buckets.bucket().take()?);
            buckets.finish()
        })),
        Fault::EmptyBucketFlush => Box::new(FlushedEmpty),
        Fault::UnusedWaitedFor => {
            let arrived = vec![false; context.plan.params().len()];
            Box::new(UnusedWaitedFor { context, arrived })
        }
        Fault::OffloadCopiedEarly => Box::new(CopiedEarly::default()),
        Fault::TiedReducedTwice => Box::new(TiedTwice { context }),
        _ => return None,
    })
}

/// A fault that replaces the reduction by a function.
struct Reduces(fn(&mut IpgBuckets) -> Result<()>);

impl FlowFault<IpgBuckets> for Reduces {
    fn reduce(&mut self, buckets: &mut IpgBuckets) -> Result<()> {
        (self.0)(buckets)
    }
}

/// The fault that flushes an empty bucket in a backward pass that should reduce nothing.
struct FlushedEmpty;

impl FlowFault<IpgBuckets> for FlushedEmpty {
    fn end(&mut self, buckets: &mut IpgBuckets) -> Result<()> {
        buckets.end()?;
        if buckets.reduces() { Ok(()) } else { buckets.flush(FlushReason::Boundary) }
    }
}

/// The fault that drops the bucket if the gradient of any trainable parameter has not arrived.
struct UnusedWaitedFor {
    context: Rc<Context>,
    arrived: Vec<bool>,
}

impl FlowFault<IpgBuckets> for UnusedWaitedFor {
    fn begin(&mut self, buckets: &mut IpgBuckets, microbatch: Microbatch) -> Result<()> {
        self.arrived.fill(false);
        buckets.begin(microbatch)
    }

    fn arrived(&mut self, buckets: &mut IpgBuckets, param: usize) -> Result<()> {
        self.arrived[param] = true;
        buckets.arrived(param)
    }

    fn reduce(&mut self, buckets: &mut IpgBuckets) -> Result<()> {
        let mut params = self.context.plan.params().iter().zip(&self.arrived);
        if params.all(|(param, arrived)| *arrived || !param.trainable) {
            return buckets.reduce();
        }
        drop(buckets.bucket().take()?);
        buckets.finish()
    }
}

/// The fault that puts the gradient of a tied parameter into the bucket twice, once for each use.
struct TiedTwice {
    context: Rc<Context>,
}

impl FlowFault<IpgBuckets> for TiedTwice {
    fn arrived(&mut self, buckets: &mut IpgBuckets, param: usize) -> Result<()> {
        buckets.arrived(param)?;
        let name = &self.context.plan.params()[param].name;
        let is_tied = Shape::Tied.param() == Some(name);
        if is_tied && buckets.reduces() { buckets.put_into_bucket(param) } else { Ok(()) }
    }
}

/// The fault that gives the optimizer the average without the last bucket.
#[derive(Default)]
struct CopiedEarly {
    copy: Option<Tensor>,
}

impl FlowFault<IpgBuckets> for CopiedEarly {
    fn reduce(&mut self, buckets: &mut IpgBuckets) -> Result<()> {
        self.copy = Some(buckets.averaged().copy());
        buckets.reduce()
    }

    fn partition_gradient(&mut self, buckets: &mut IpgBuckets) -> Result<Tensor> {
        let host = buckets.partition_gradient()?.device();
        let copy = self.copy.take().context("the step has no reduction")?;
        Ok(copy.f_to_device_(host, Kind::Float, false, true)?)
    }
}
