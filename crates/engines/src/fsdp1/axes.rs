//! The values of FSDP1's settings that are worth trying.

use crate::axes::{Axes, choices, clipping, shapes_of};
use zprobe_model::spec::{Engine, Shape};

pub(super) fn axes() -> Axes {
    let dtypes = [
        ("bf16", "--dtype bf16", "reduce fp32", "--comm-dtype fp32"),
        ("bf16", "--dtype bf16", "reduce bf16", "--comm-dtype bf16"),
        ("fp16", "--dtype fp16", "reduce fp16", "--comm-dtype fp16"),
        ("fp32", "--dtype fp32", "reduce fp32", "--comm-dtype fp32"),
    ];
    let holders = [("flat parameters", ""), ("original parameters", "--use-orig-params true")];
    let bases: Vec<_> = dtypes
        .iter()
        .flat_map(|(dtype, model, reduce, comm)| {
            holders.map(|holder| choices(&[(*dtype, *model), (*reduce, *comm), holder]))
        })
        .collect();
    let counts = [("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")];
    let whole = ("no shard", "--sharding-strategy no-shard");
    let keep = ("shard-grad-op", "--sharding-strategy shard-grad-op");
    let hybrid = ("hybrid", "--nproc-per-node 4 --sharding-strategy hybrid-shard --replicas 2");
    let every = ("reduced in every microbatch", "--reduce-every-microbatch true");
    let low = ("low-precision gradients", "--keep-low-precision-grads true");
    let clips = ("clipping always", "--gradient-clipping 0.125");
    Axes {
        factor_bases: bases.clone(),
        pair_bases: bases[..2].to_vec(),
        bases,
        factors: vec![
            choices(&counts),
            choices(&[
                whole,
                keep,
                hybrid,
                (
                    "hybrid-shard-zero2",
                    "--nproc-per-node 4 --sharding-strategy hybrid-shard-zero2 --replicas 2",
                ),
                ("one shard", "--sharding-strategy hybrid-shard --replicas 2"),
            ]),
            choices(&[every]),
            choices(&[low]),
            choices(&[("state dict", "--assign-state-dict true")]),
            choices(&[("2 parameter groups", "--parameter-groups 2")]),
            choices(&[("resumed", "--resume-before 1 --optimizer adamw")]),
            clipping(),
        ],
        partners: choices(&[
            counts[0], counts[1], counts[2], whole, keep, hybrid, every, low, clips,
        ]),
        shapes: shapes_of(Engine::Fsdp1, &[Shape::DifferentStart]),
    }
}
