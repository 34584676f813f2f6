//! The engine FSDP2: PyTorch's `fully_shard`.

mod axes;

use super::source::torch;
use super::{EngineFacts, EngineScript, Project, PythonSource, ReleaseFeatures};
use zprobe_model::spec::{Dtype, Point, RunSpec};

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "FSDP2",
    project: Project::PyTorch,
    python: Some(PythonSource {
        package: None,
        trial: Some(include_str!("trial.py")),
        advice: "upgrade torch: fully_shard on the CPU works with 2.11, and not with 2.6 or older",
        features: Some(ReleaseFeatures { fact: "fsdp2_methods", needed: methods }),
        script: &[("script.py", include_str!("script.py"))],
        eyes: &[("eyes.py", include_str!("eyes.py"))],
    }),
    unwatched: Some("zprobe does not watch every collective of this engine"),
    axes: axes::axes,
    function: |_, _, point| match point {
        Point::Accumulator | Point::Reduced | Point::BeforeStep | Point::OptimizerInput => Some(
            "FSDPParamGroup.post_backward, foreach_reduce \
             (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)",
        ),
        _ => None,
    },
    // The parameters are fp32; FSDP2's mixed-precision policy sets the dtype of the computation.
    parameters_in: |_| Dtype::Fp32,
    repro,
};

/// The methods of FSDP2's modules that a run calls and that some releases lack, each with its flag.
fn methods(spec: &RunSpec) -> Vec<(String, String)> {
    let Some(fsdp2) = spec.fsdp2() else { return Vec::new() };
    let rows = [
        (!fsdp2.reshard_after_backward, "set_reshard_after_backward", "--reshard-after-backward"),
        (fsdp2.all_reduce_at_boundary, "set_requires_all_reduce", "--all-reduce-at-boundary"),
        (
            fsdp2.gradient_divide_factor.is_some(),
            "set_gradient_divide_factor",
            "--gradient-divide-factor",
        ),
        (fsdp2.all_reduce_hook, "set_all_reduce_hook", "--all-reduce-hook"),
        (fsdp2.force_sum_reduction, "set_force_sum_reduction_for_comms", "--force-sum-reduction"),
    ];
    let needed = rows.into_iter().filter(|(is_needed, _, _)| *is_needed);
    needed.map(|(_, method, flag)| (method.to_owned(), flag.to_owned())).collect()
}

fn repro(spec: &RunSpec) -> Result<EngineScript, String> {
    let fsdp2 = spec.fsdp2().ok_or("the specification has no settings for FSDP2")?;
    if fsdp2.tensor_parallel > 1 {
        return Err("the script does not support tensor parallelism; --tensor-parallel 1 may show the same bug"
            .to_owned());
    }
    let (replicas, hook) = (fsdp2.replicas, fsdp2.all_reduce_hook);
    let mesh = match (replicas, spec.world_size / replicas.max(1)) {
        (1, _) => "init_device_mesh(\"cpu\", (W,))".to_owned(),
        (replicas, shards) => format!(
            "init_device_mesh(\"cpu\", ({replicas}, {shards}), mesh_dim_names=(\"replicate\", \"shard\"))"
        ),
    };
    if fsdp2.shard_dimension != 0 {
        return Err("the script does not shard along other dimensions; --shard-dimension 0 may show the same bug".to_owned());
    }
    let mut options = if hook { "mesh=mesh[\"shard\"]" } else { "mesh=mesh" }.to_owned();
    options += ", mp_policy=policy";
    if !fsdp2.reshard_after_forward {
        options += ", reshard_after_forward=False";
    }
    if let Some(ranks) = fsdp2.shards_after_forward {
        options += &format!(", reshard_after_forward={ranks}");
    }
    let (mut of_module, mut of_model) = (String::new(), String::new());
    if let Some(divisor) = fsdp2.gradient_divide_factor {
        of_module += &format!("        module.set_gradient_divide_factor({divisor:?})\n");
    }
    if fsdp2.force_sum_reduction {
        of_module += "        module.set_force_sum_reduction_for_comms(True)\n";
    }
    if hook {
        of_module += &format!(
            "        module.set_all_reduce_hook(lambda g: (dist.all_reduce(g, group=mesh.get_group(\"replicate\")), \
             g.div_({replicas})))\n"
        );
    }
    if fsdp2.assign_state_dict {
        of_model += "    state = {name: value.detach().clone() for name, value in model.state_dict().items()}\n    \
                     model.load_state_dict(state, assign=True)\n";
    }
    // FSDP2 divides by the gradient divide factor instead of the number of ranks; the script multiplies the loss by the
    // ratio of the two, so that the gradients are a mean.
    let over = fsdp2.gradient_divide_factor.map(|divisor| format!(" * {divisor:?} / W"));
    Ok(EngineScript {
        text: include_str!("repro.py")
            .replace("param_dtype=None", &format!("param_dtype={}", torch(spec.dtype)))
            .replace(
                "reduce_dtype=None",
                &format!("reduce_dtype={}", torch(spec.narrowest_comm_dtype())),
            )
            .replace("mesh = None", &format!("mesh = {mesh}"))
            .replace("mesh=mesh", &options)
            .replace("        #: module\n", &of_module)
            .replace("    #: sharded\n", &of_model),
        constants: String::new(),
        forward: "model",
        accumulation,
        backward: format!("(loss{} / GA).backward()", over.unwrap_or_default()),
    })
}

/// The script lines that tell the modules whether a backward is the last of a step.
fn accumulation(spec: &RunSpec, last: &str, _: bool) -> Vec<String> {
    let Some(fsdp2) = spec.fsdp2() else { return Vec::new() };
    let sync = if fsdp2.reduce_every_microbatch { "True" } else { last };
    let mut lines = vec![format!("model.set_requires_gradient_sync({sync})")];
    if fsdp2.all_reduce_at_boundary {
        lines.push(format!("model.set_requires_all_reduce({last})"));
    }
    if !fsdp2.reshard_after_backward {
        lines.push(format!("model.set_reshard_after_backward({last})"));
    }
    lines
}
