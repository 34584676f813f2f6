//! Faults of the rank's process, which occur before its second backward pass.

use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::{Signal, raise};
use zprobe_model::spec::Fault;

use super::Injected;
use super::flow::FlowFault;
use crate::engine::context::{Context, Microbatch};
use crate::engine::flow::GradientFlow;

/// Returns the implementation of a fault in which the rank dies, hangs or writes rubbish; `None` for other faults.
pub fn flow_fault<F: GradientFlow>(
    fault: Injected,
    context: &Rc<Context>,
) -> Option<Box<dyn FlowFault<F>>> {
    let misbehave: fn(&Context) -> Result<()> = match fault? {
        Fault::RankDies => |_| Ok(raise(Signal::SIGKILL)?),
        Fault::RankHangs => |_| {
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        },
        Fault::RankRubbish => |context| {
            let rubbish = b"Segmentation fault? no, a print() on the event channel\n";
            context.recorder.write_raw(rubbish)
        },
        _ => return None,
    };
    Some(Box::new(Misbehaves { context: Rc::clone(context), backwards: 0, misbehave }))
}

/// The fault that calls a function before the second backward pass.
struct Misbehaves {
    context: Rc<Context>,
    backwards: usize,
    misbehave: fn(&Context) -> Result<()>,
}

impl<F: GradientFlow> FlowFault<F> for Misbehaves {
    fn begin(&mut self, flow: &mut F, microbatch: Microbatch) -> Result<()> {
        self.backwards += 1;
        if self.backwards == 2 {
            (self.misbehave)(&self.context)?;
        }
        flow.begin(microbatch)
    }
}
