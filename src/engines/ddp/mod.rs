//! PyTorch's `DistributedDataParallel`.

mod axes;

use super::source::{arguments, literal};
use super::{Features, Project, Python, Room};
use crate::spec::{CommHook, Compile, DelayedParameters, Point, RunSpec};

pub(super) static ROOM: Room = Room {
    title: "DDP",
    project: Project::PyTorch,
    python: Some(Python {
        package: None,
        trial: include_str!("trial.py"),
        advice: "install another torch, or name another interpreter with --python",
        limit: None,
        features: Some(Features { fact: "ddp_arguments", needed: arguments_of_ddp }),
        adapter: &[("adapter.py", include_str!("adapter.py"))],
    }),
    unwatched: Some("DDP reduces gradients in C++, where it is not watched"),
    axes: axes::axes,
    function: |spec, _, point| match point {
        Point::Accumulator => Some("AccumulateGrad, under DistributedDataParallel.no_sync"),
        Point::BeforeStep | Point::OptimizerInput if delays_parameters(spec) => Some(
            "Reducer::finalize_bucket_dense (torch/csrc/distributed/c10d/reducer.cpp), or of delayed \
             parameters _delayed_all_reduce_hook (torch/nn/parallel/distributed.py)",
        ),
        Point::Reduced | Point::BeforeStep | Point::OptimizerInput => {
            Some("Reducer::finalize_bucket_dense (torch/csrc/distributed/c10d/reducer.cpp)")
        }
        _ => None,
    },
    parameters_in: |spec| spec.dtype,
    standalone,
};

/// True if DDP leaves some parameters to a hook of their own.
fn delays_parameters(spec: &RunSpec) -> bool {
    spec.ddp().is_some_and(|ddp| ddp.delayed_parameters != DelayedParameters::None)
}

/// Arguments of `DistributedDataParallel` that a run gives and that not every release has.
fn arguments_of_ddp(spec: &RunSpec) -> Vec<(String, String)> {
    let needed = ("delay_all_reduce_named_params".to_owned(), "--delayed-parameters".to_owned());
    if delays_parameters(spec) { vec![needed] } else { Vec::new() }
}

fn standalone(spec: &RunSpec) -> Result<String, String> {
    const WITH_STATE: &str = "the script has no communication hooks that keep a state; --comm-hook none may show the same";
    let ddp = spec.ddp().ok_or("the specification has no settings for DDP")?;
    let options = arguments(&ddp, &["comm_hook", "delayed_parameters", "compile"]);
    let hook = match ddp.comm_hook {
        CommHook::None => "None",
        CommHook::Fp16Compress => "'fp16_compress_hook'",
        CommHook::Bf16Compress => "'bf16_compress_hook'",
        CommHook::AllReduce => "'allreduce_hook'",
        CommHook::PowerSgd | CommHook::PostLocalSgd => return Err(WITH_STATE.to_owned()),
    };
    Ok(include_str!("standalone.py")
        .replace("{}  #: options", &options)
        .replace(
            "None  #: delayed_parameters",
            &match ddp.delayed_parameters {
                DelayedParameters::None => "None".to_owned(),
                delayed => literal(&delayed.to_string()),
            },
        )
        .replace(
            "None  #: compile",
            &match ddp.compile {
                Compile::None => "None".to_owned(),
                backend => literal(&backend.name().replace('-', "_")),
            },
        )
        .replace("None  #: comm_hook", hook))
}
