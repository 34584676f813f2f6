//! The engine DDP: PyTorch's `DistributedDataParallel`.

mod axes;

use super::source::arguments;
use super::{EngineFacts, EngineScript, Project, PythonSource, ReleaseFeatures};
use zprobe_model::spec::{
    CommHook, Compile, DelayedParameters, OverlappedOptimizer, Point, RunSpec,
};

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "DDP",
    project: Project::PyTorch,
    python: Some(PythonSource {
        package: None,
        trial: Some(include_str!("trial.py")),
        advice: "install another torch, or name another interpreter with --python",
        features: Some(ReleaseFeatures { fact: "ddp_arguments", needed: arguments_of_ddp }),
        script: &[
            ("script.py", include_str!("script.py")),
            ("overlapped.py", include_str!("overlapped.py")),
        ],
        eyes: &[("eyes.py", include_str!("eyes.py"))],
    }),
    unwatched: Some("DDP reduces gradients in C++, where zprobe does not watch the collectives"),
    axes: axes::axes,
    function: |spec, _, point| match point {
        Point::Accumulator => Some("AccumulateGrad, under DistributedDataParallel.no_sync"),
        Point::BeforeStep | Point::OptimizerInput if delays_parameters(spec) => Some(
            "Reducer::finalize_bucket_dense (torch/csrc/distributed/c10d/reducer.cpp), or for delayed \
             parameters: _delayed_all_reduce_hook (torch/nn/parallel/distributed.py)",
        ),
        Point::Reduced | Point::BeforeStep | Point::OptimizerInput => {
            Some("Reducer::finalize_bucket_dense (torch/csrc/distributed/c10d/reducer.cpp)")
        }
        _ => None,
    },
    parameters_in: |spec| spec.dtype,
    repro,
};

/// True if DDP reduces some parameters outside of its buckets, with a separate hook.
fn delays_parameters(spec: &RunSpec) -> bool {
    spec.ddp().is_some_and(|ddp| ddp.delayed_parameters != DelayedParameters::None)
}

/// The arguments of `DistributedDataParallel` that a run uses and that some releases lack, each with its flag.
fn arguments_of_ddp(spec: &RunSpec) -> Vec<(String, String)> {
    let needed = ("delay_all_reduce_named_params".to_owned(), "--delayed-parameters".to_owned());
    if delays_parameters(spec) { vec![needed] } else { Vec::new() }
}

/// The fields of the settings that are no arguments of `DistributedDataParallel`.
const NO_ARGUMENTS: &[&str] =
    &["comm_hook", "delayed_parameters", "compile", "overlapped_optimizer", "tensor_parallel"];

fn repro(spec: &RunSpec) -> Result<EngineScript, String> {
    const WITH_STATE: &str = "the script supports no stateful communication hook; --comm-hook none may show the same bug";
    let ddp = spec.ddp().ok_or("the specification has no settings for DDP")?;
    if ddp.compile != Compile::None {
        return Err(
            "the script does not support torch.compile; --compile none may show the same bug"
                .to_owned(),
        );
    }
    if ddp.overlapped_optimizer != OverlappedOptimizer::None || ddp.tensor_parallel > 1 {
        return Err(
            "the script supports neither an optimizer in backward nor several process groups; \
                    --overlapped-optimizer none or --tensor-parallel 1 may show the same bug"
                .to_owned(),
        );
    }
    let mut options = arguments(&ddp, NO_ARGUMENTS);
    let hook = match ddp.comm_hook {
        CommHook::None => None,
        CommHook::Fp16Compress => Some("fp16_compress_hook"),
        CommHook::Bf16Compress => Some("bf16_compress_hook"),
        CommHook::AllReduce => Some("allreduce_hook"),
        _ => return Err(WITH_STATE.to_owned()),
    };
    let mut made = String::new();
    if ddp.delayed_parameters != DelayedParameters::None {
        options = arguments(&ddp, &[&["bucket_cap_mb"], NO_ARGUMENTS].concat());
        made += "    named = list(model.named_parameters())\n";
        options += &format!(
            ", bucket_cap_mb={}, delay_all_reduce_named_params=named[-(len(named) // 2) :], \
             param_to_hook_all_reduce=named[0][1]",
            ddp.bucket_cap_mb as usize
        );
    }
    made += &format!("    ddp = DistributedDataParallel(model{options})\n");
    if let Some(hook) = hook {
        made += &format!("    ddp.register_comm_hook(None, default_hooks.{hook})\n");
    }
    let import = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n";
    let awaits = ddp.delayed_parameters == DelayedParameters::Awaited;
    Ok(EngineScript {
        text: include_str!("repro.py")
            .replace("#: import\n", if hook.is_some() { import } else { "" })
            .replace("    #: engine\n", &made),
        constants: String::new(),
        forward: "ddp",
        accumulation: |_, last, _| match last {
            "False" => vec!["with ddp.no_sync():".to_owned()],
            last => vec![format!("with contextlib.nullcontext() if {last} else ddp.no_sync():")],
        },
        backward: if awaits {
            "(loss / GA).backward(), dist.barrier()"
        } else {
            "(loss / GA).backward()"
        }
        .to_owned(),
    })
}
