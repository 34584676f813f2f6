//! Traces on paper for rules that no fault of the native engine triggers.

use zprobe::spec::{Engine, SpecRequest};
use zprobe::trace::{Event, LayoutName, Trace};

use super::simulator::{Cut, Simulation};

/// Every scenario, by name.
pub fn scenarios() -> Vec<(String, Trace)> {
    [("tail-held-by-nobody", tail_held_by_nobody as fn() -> Trace)]
        .into_iter()
        .map(|(name, trace)| (format!("simulated-{name}"), trace()))
        .collect()
}

/// Two ranks of a real engine.
pub fn request() -> SpecRequest {
    SpecRequest { engine: Some(Engine::DeepSpeed), world_size: Some(2), ..SpecRequest::default() }
}

/// The last rank's partition ends before the model does.
fn tail_held_by_nobody() -> Trace {
    let mut trace = Simulation::new(request(), Cut::Flat).trace();
    for record in trace.records.iter_mut().filter(|record| record.rank == Some(1)) {
        if let Event::Layout { layout: LayoutName::Partition, segments } = &mut record.event
            && let Some(last) = segments.iter_mut().rfind(|segment| segment.param.is_some())
        {
            last.param = None;
        }
    }
    trace
}
