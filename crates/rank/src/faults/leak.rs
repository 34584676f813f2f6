//! The boundary leak: the reduction runs before the boundary microbatch, whose gradient stays local.

use std::rc::Rc;

use anyhow::Result;
use zprobe_model::spec::Fault;

use super::flow::FlowFault;
use super::{Injected, add_unaveraged};
use crate::engine::accumulator::Accumulator;
use crate::engine::context::{Context, Microbatch};
use crate::engine::flow::GradientFlow;
use crate::engine::ipg::IpgBuckets;

/// Returns the boundary leak for an accumulator; `None` for other faults.
pub fn of_accumulator(fault: Injected) -> Option<Box<dyn FlowFault<Accumulator>>> {
    (fault? == Fault::BoundaryLeak).then(|| Box::new(LeakyAccumulator) as _)
}

/// Returns the boundary leak for a bucket flow; `None` for other faults.
pub fn of_buckets(
    fault: Injected,
    context: &Rc<Context>,
) -> Option<Box<dyn FlowFault<IpgBuckets>>> {
    let context = Rc::clone(context);
    let leak = LeakyBuckets { context, current: Microbatch::NONE };
    (fault? == Fault::BoundaryLeak).then(|| Box::new(leak) as _)
}

/// Begins a backward pass. At the boundary, gradients are reduced at once, and not at the end of the pass.
fn reduce_early(flow: &mut impl GradientFlow, microbatch: Microbatch) -> Result<()> {
    flow.begin(microbatch)?;
    if microbatch.boundary { flow.reduce() } else { Ok(()) }
}

/// The fault that adds the gradient of the boundary microbatch to an accumulator that is already averaged.
struct LeakyAccumulator;

impl FlowFault<Accumulator> for LeakyAccumulator {
    fn begin(&mut self, flow: &mut Accumulator, microbatch: Microbatch) -> Result<()> {
        reduce_early(flow, microbatch)
    }

    fn reduce(&mut self, _flow: &mut Accumulator) -> Result<()> {
        Ok(())
    }
}

/// The fault that adds the gradient of the boundary microbatch to the owners' average directly, without a bucket.
struct LeakyBuckets {
    context: Rc<Context>,
    current: Microbatch,
}

impl FlowFault<IpgBuckets> for LeakyBuckets {
    fn begin(&mut self, flow: &mut IpgBuckets, microbatch: Microbatch) -> Result<()> {
        self.current = microbatch;
        reduce_early(flow, microbatch)
    }

    fn arrived(&mut self, flow: &mut IpgBuckets, param: usize) -> Result<()> {
        if !self.current.boundary {
            return flow.arrived(param);
        }
        flow.accumulate(param)?;
        let gradient = flow.accumulated(param)?;
        add_unaveraged(&self.context, flow.averaged(), param, &gradient)
    }

    fn reduce(&mut self, flow: &mut IpgBuckets) -> Result<()> {
        if self.current.boundary { Ok(()) } else { flow.reduce() }
    }
}
