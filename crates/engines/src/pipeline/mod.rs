//! The engine of PyTorch's pipelining schedules.

mod axes;

use super::{EngineFacts, Project, PythonSource, ReleaseFeatures};
use zprobe_model::spec::{Point, RunSpec, Schedule};

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "torch.distributed.pipelining",
    project: Project::PyTorch,
    python: Some(PythonSource {
        package: None,
        trial: Some(include_str!("trial.py")),
        advice: "upgrade torch to 2.11 or newer, whose pipelining schedules work",
        features: Some(ReleaseFeatures { fact: "pipelining", needed }),
        script: &[("script.py", include_str!("script.py"))],
        eyes: &[],
    }),
    unwatched: Some("zprobe does not watch every collective of this engine"),
    axes: axes::axes,
    function: |_, _, point| match point {
        Point::BeforeStep | Point::OptimizerInput => Some(
            "_PipelineStageBase.backward_one_chunk, perform_reduce_grad \
             (torch/distributed/pipelining/stage.py), called by the schedule (schedules.py)",
        ),
        _ => None,
    },
    parameters_in: |spec| spec.dtype,
    repro: |_| {
        Err("the script does not support pipelines; send the run directory's rank-program with the report"
            .to_owned())
    },
};

/// The classes and arguments of torch's schedules that a run needs and that some releases lack, each with its flag.
fn needed(spec: &RunSpec) -> Vec<(String, String)> {
    let Some(pipeline) = spec.pipeline() else { return Vec::new() };
    let schedule =
        (class(pipeline.schedule).to_owned(), format!("--schedule {}", pipeline.schedule));
    // In releases without `use_batch`, the stages wait for each other for ever over Gloo.
    let always = ["scale_grads", "use_batch"];
    let always = always.map(|name| (name.to_owned(), "--engine pipeline".to_owned()));
    std::iter::once(schedule).chain(always).collect()
}

/// The name of torch's class for a schedule.
fn class(schedule: Schedule) -> &'static str {
    match schedule {
        Schedule::GPipe => "ScheduleGPipe",
        Schedule::OneForwardOneBackward => "Schedule1F1B",
        Schedule::LoopedBfs => "ScheduleLoopedBFS",
        Schedule::Interleaved => "ScheduleInterleaved1F1B",
        Schedule::InterleavedZeroBubble => "ScheduleInterleavedZeroBubble",
        Schedule::ZbvZeroBubble => "ScheduleZBVZeroBubble",
        Schedule::DualPipeV => "ScheduleDualPipeV",
    }
}
