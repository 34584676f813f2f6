//! PyTorch's `fully_shard`.

mod axes;

use super::source::{arguments, torch};
use super::{Features, Project, Python, Room};
use crate::spec::{Dtype, Point, RunSpec};

pub(super) static ROOM: Room = Room {
    title: "FSDP2",
    project: Project::PyTorch,
    python: Some(Python {
        package: None,
        trial: include_str!("trial.py"),
        advice: "upgrade torch: fully_shard on the CPU works with 2.11, and not with 2.6 or older",
        limit: None,
        features: Some(Features { fact: "fsdp2_methods", needed: methods }),
        adapter: &[("adapter.py", include_str!("adapter.py"))],
    }),
    unwatched: Some("not every collective of this engine is watched"),
    axes: axes::axes,
    function: |_, _, point| match point {
        Point::Accumulator | Point::Reduced | Point::BeforeStep | Point::OptimizerInput => Some(
            "FSDPParamGroup.post_backward, foreach_reduce \
             (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)",
        ),
        _ => None,
    },
    // FSDP2's mixed-precision policy sets the dtype that they are computed in.
    parameters_in: |_| Dtype::Fp32,
    standalone,
};

/// Methods of FSDP2's modules that a run calls and that not every release has.
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

fn standalone(spec: &RunSpec) -> Result<String, String> {
    let fsdp2 = spec.fsdp2().ok_or("the specification has no settings for FSDP2")?;
    if fsdp2.tensor_parallel > 1 {
        return Err("the script has no tensor parallelism; --tensor-parallel 1 may show the same"
            .to_owned());
    }
    let reduce = torch(spec.narrowest_comm_dtype());
    Ok(include_str!("standalone.py")
        .replace("torch.bfloat16  #: compute_dtype", torch(spec.dtype))
        .replace("torch.float32  #: reduce_dtype", reduce)
        .replace("{}  #: settings", &arguments(&fsdp2, &["tensor_parallel"])))
}
