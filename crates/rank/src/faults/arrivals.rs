//! Faults that change a gradient before it is accumulated.

use std::collections::BTreeMap;

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::Injected;
use super::flow::FlowFault;
use crate::engine::context::Microbatch;
use crate::engine::flat::narrow;
use crate::engine::flow::GradientFlow;

/// A function that changes the flat gradient of a parameter in place.
type GradientChange = Box<dyn FnMut(&mut Tensor, usize, Microbatch) -> Result<()>>;

/// Returns the implementation of a fault that changes gradients when they arrive at the flow; `None` for other faults.
pub fn flow_fault<F: GradientFlow>(
    fault: Injected,
    params: &[Tensor],
) -> Option<Box<dyn FlowFault<F>>> {
    let change: GradientChange = match fault? {
        Fault::MicrobatchDropped => Box::new(|gradient, _, _| {
            let _ = gradient.f_zero_()?;
            Ok(())
        }),
        Fault::MicrobatchDoubled => Box::new(|gradient, _, _| {
            let _ = gradient.f_mul_scalar_(2.0)?;
            Ok(())
        }),
        Fault::MicrobatchFromPreviousStep => {
            let mut earlier = BTreeMap::new();
            Box::new(move |gradient, param, _| match earlier.insert(param, gradient.copy()) {
                Some(earlier) => Ok(gradient.f_copy_(&earlier)?),
                None => Ok(()),
            })
        }
        Fault::InfinityOnOneRank => Box::new(|gradient, _, microbatch| {
            if microbatch.step == 0 {
                let _ = narrow(gradient, 0..1)?.f_fill_(f64::INFINITY)?;
            }
            Ok(())
        }),
        _ => return None,
    };
    let params = params.iter().map(Tensor::shallow_clone).collect();
    Some(Box::new(FirstChanged { params, current: Microbatch::NONE, change }))
}

/// The fault that changes the gradients of the first microbatch of each step.
struct FirstChanged {
    params: Vec<Tensor>,
    current: Microbatch,
    change: GradientChange,
}

impl<F: GradientFlow> FlowFault<F> for FirstChanged {
    fn begin(&mut self, flow: &mut F, microbatch: Microbatch) -> Result<()> {
        self.current = microbatch;
        flow.begin(microbatch)
    }

    fn arrived(&mut self, flow: &mut F, param: usize) -> Result<()> {
        let gradient = self.params[param].grad();
        if self.current.index == 0 && gradient.defined() {
            (self.change)(&mut gradient.detach().reshape([-1]), param, self.current)?;
        }
        flow.arrived(param)
    }
}
