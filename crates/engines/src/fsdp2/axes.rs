//! The values of FSDP2's settings that are worth trying.

use crate::axes::{Axes, choices, clipping, shapes_of};
use zprobe_model::spec::{Engine, Shape};

pub(super) fn axes() -> Axes {
    let bases: Vec<_> = [
        ("bf16", "--dtype bf16", "reduce fp32", "--comm-dtype fp32"),
        ("bf16", "--dtype bf16", "reduce bf16", "--comm-dtype bf16"),
        ("fp16", "--dtype fp16", "reduce fp32", "--comm-dtype fp32"),
        ("fp16", "--dtype fp16", "reduce fp16", "--comm-dtype fp16"),
        ("fp32", "--dtype fp32", "reduce fp32", "--comm-dtype fp32"),
    ]
    .iter()
    .map(|(dtype, model, reduce, comm)| choices(&[(*dtype, *model), (*reduce, *comm)]))
    .collect();
    let counts = [("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")];
    let partly = ("two shards after forward", "--nproc-per-node 4 --shards-after-forward 2");
    let keep = ("no reshard-after-forward", "--reshard-after-forward false");
    let every = ("reduced in every microbatch", "--reduce-every-microbatch true");
    let replicas = ("two replicas", "--replicas 2");
    let hook = ("replicas by a hook", "--replicas 2 --all-reduce-hook true");
    let at_boundary = (
        "all-reduced at the boundary",
        "--replicas 2 --reduce-every-microbatch true --all-reduce-at-boundary true",
    );
    let tensor = ("tensor parallelism", "--nproc-per-node 4 --tensor-parallel 2");
    let tensor_and_replicas =
        ("tensor parallelism, two replicas", "--nproc-per-node 4 --tensor-parallel 2 --replicas 2");
    let columns = ("sharded by columns", "--shard-dimension 1");
    let sum = ("forced sum", "--force-sum-reduction true");
    let divisor = ("sum over the ranks", "--force-sum-reduction true --gradient-divide-factor 1");
    let one_shard = ("one shard, own divisor", "--replicas 2 --gradient-divide-factor 8");
    let kept = ("no reshard-after-backward", "--reshard-after-backward false");
    let state = ("state dict", "--assign-state-dict true");
    let clips = ("clipping always", "--gradient-clipping 0.125");
    Axes {
        factor_bases: bases.clone(),
        pair_bases: bases[..1].to_vec(),
        bases,
        factors: vec![
            choices(&counts),
            choices(&[keep, partly]),
            choices(&[kept]),
            choices(&[every, replicas, at_boundary, hook]),
            choices(&[tensor, tensor_and_replicas]),
            choices(&[columns]),
            choices(&[sum, divisor, one_shard]),
            choices(&[state]),
            choices(&[("2 parameter groups", "--parameter-groups 2")]),
            choices(&[("GradScaler", "--loss-scale dynamic")]),
            choices(&[("resumed", "--resume-before 1 --optimizer adamw")]),
            choices(&[("CPU offload", "--offload cpu")]),
            clipping(),
        ],
        partners: choices(&[
            counts[0], counts[1], counts[2], keep, every, replicas, tensor, columns, clips,
        ]),
        shapes: shapes_of(Engine::Fsdp2, &[Shape::DifferentStart]),
    }
}
