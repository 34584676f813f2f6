//! Gradient flows with an injected fault.

use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::{Injected, arrivals, buckets, fill_with_garbage, handover, leak, process};
use crate::engine::accumulator::Accumulator;
use crate::engine::context::{Context, Microbatch};
use crate::engine::flow::GradientFlow;
use crate::engine::ipg::IpgBuckets;

/// A fault of a gradient flow. The default methods call the sound flow.
pub trait FlowFault<F: GradientFlow> {
    /// Replaces [`GradientFlow::begin`].
    fn begin(&mut self, flow: &mut F, microbatch: Microbatch) -> Result<()> {
        flow.begin(microbatch)
    }

    /// Replaces [`GradientFlow::arrived`].
    fn arrived(&mut self, flow: &mut F, param: usize) -> Result<()> {
        flow.arrived(param)
    }

    /// Replaces [`GradientFlow::end`].
    fn end(&mut self, flow: &mut F) -> Result<()> {
        flow.end()
    }

    /// Replaces [`GradientFlow::reduce`].
    fn reduce(&mut self, flow: &mut F) -> Result<()> {
        flow.reduce()
    }

    /// Replaces [`GradientFlow::partition_gradient`].
    fn partition_gradient(&mut self, flow: &mut F) -> Result<Tensor> {
        flow.partition_gradient()
    }

    /// Replaces [`GradientFlow::zero_grad`].
    fn zero_grad(&mut self, flow: &mut F) -> Result<()> {
        flow.zero_grad()
    }
}

/// A sound gradient flow with a fault that replaces some of its methods.
struct FaultyFlow<F> {
    flow: F,
    fault: Box<dyn FlowFault<F>>,
}

impl<F: GradientFlow> GradientFlow for FaultyFlow<F> {
    fn class(&self) -> &'static str {
        self.flow.class()
    }

    fn begin(&mut self, microbatch: Microbatch) -> Result<()> {
        self.fault.begin(&mut self.flow, microbatch)
    }

    fn arrived(&mut self, param: usize) -> Result<()> {
        self.fault.arrived(&mut self.flow, param)
    }

    fn end(&mut self) -> Result<()> {
        self.fault.end(&mut self.flow)
    }

    fn reduces(&self) -> bool {
        self.flow.reduces()
    }

    fn reduce(&mut self) -> Result<()> {
        self.fault.reduce(&mut self.flow)
    }

    fn partition_gradient(&mut self) -> Result<Tensor> {
        self.fault.partition_gradient(&mut self.flow)
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.fault.zero_grad(&mut self.flow)
    }
}

/// The accumulator for the engine, faulty if `fault` is a fault of accumulators.
pub fn accumulator(
    fault: Injected,
    context: &Rc<Context>,
    params: &[Tensor],
    sound: Accumulator,
) -> Result<Box<dyn GradientFlow>> {
    if fault == Some(Fault::BufferNotSet) {
        fill_with_garbage(sound.gradients())?;
    }
    let faulty = leak::of_accumulator(fault);
    Ok(with(sound, faulty.or_else(|| of_either(fault, context, params))))
}

/// The bucket flow for the engine, faulty if `fault` is a fault of bucket flows.
pub fn ipg(
    fault: Injected,
    context: &Rc<Context>,
    params: &[Tensor],
    sound: IpgBuckets,
) -> Box<dyn GradientFlow> {
    let faulty = leak::of_buckets(fault, context).or_else(|| buckets::flow_fault(fault, context));
    with(sound, faulty.or_else(|| of_either(fault, context, params)))
}

/// Returns the implementation of a fault that accumulators and bucket flows can have; `None` for other faults.
fn of_either<F: GradientFlow>(
    fault: Injected,
    context: &Rc<Context>,
    params: &[Tensor],
) -> Option<Box<dyn FlowFault<F>>> {
    arrivals::flow_fault(fault, params)
        .or_else(|| handover::flow_fault(fault, context))
        .or_else(|| process::flow_fault(fault, context))
}

fn with<F: GradientFlow + 'static>(
    sound: F,
    fault: Option<Box<dyn FlowFault<F>>>,
) -> Box<dyn GradientFlow> {
    match fault {
        Some(fault) => Box::new(FaultyFlow { flow: sound, fault }),
        None => Box::new(sound),
    }
}
