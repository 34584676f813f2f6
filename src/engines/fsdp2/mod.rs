//! PyTorch's `fully_shard`.

mod axes;

use super::source::{arguments, torch, truth};
use super::{Project, Python, Room};
use crate::spec::{Dtype, Point, RunSpec};

pub(super) static ROOM: Room = Room {
    title: "FSDP2",
    project: Project::PyTorch,
    python: Some(Python {
        package: None,
        trial: include_str!("trial.py"),
        advice: "upgrade torch: fully_shard on the CPU works with 2.11, and not with 2.6 or older",
        limit: None,
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

fn standalone(spec: &RunSpec) -> Result<String, String> {
    let fsdp2 = spec.fsdp2().ok_or("the specification has no settings for FSDP2")?;
    let reduce = torch(spec.narrowest_comm_dtype());
    Ok(include_str!("standalone.py")
        .replace("torch.bfloat16  #: compute_dtype", torch(spec.dtype))
        .replace("torch.float32  #: reduce_dtype", reduce)
        .replace("False  #: every_microbatch", truth(fsdp2.reduce_every_microbatch))
        .replace("{}  #: options", &arguments(&fsdp2, &["reduce_every_microbatch"])))
}
