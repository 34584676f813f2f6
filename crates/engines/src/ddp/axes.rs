//! The values of DDP's settings that are worth trying.

use crate::axes::{Axes, choices, clipping, shapes_of};
use zprobe_model::spec::Engine;

pub(super) fn axes() -> Axes {
    let dtypes = [("bf16", "--dtype bf16"), ("fp16", "--dtype fp16"), ("fp32", "--dtype fp32")];
    let bases: Vec<_> = dtypes.iter().map(|dtype| choices(&[*dtype])).collect();
    let counts = [("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")];
    let find = ("find-unused-parameters", "--find-unused-parameters true");
    let graph = ("static-graph", "--static-graph true");
    let view = ("gradient-as-bucket-view", "--gradient-as-bucket-view true");
    let narrow = ("bf16-compress", "--comm-hook bf16-compress");
    let in_backward = ("optimizer in backward", "--overlapped-optimizer in-backward");
    let groups = ("two process groups", "--nproc-per-node 4 --tensor-parallel 2");
    Axes {
        factor_bases: bases.clone(),
        pair_bases: bases[..1].to_vec(),
        bases,
        factors: vec![
            choices(&counts),
            choices(&[find, ("no find-unused-parameters", "--find-unused-parameters false")]),
            choices(&[graph]),
            choices(&[view]),
            choices(&[
                narrow,
                ("fp16-compress", "--comm-hook fp16-compress"),
                ("all-reduce hook", "--comm-hook all-reduce"),
                ("power-sgd", "--comm-hook power-sgd"),
                ("power-sgd-full-rank", "--comm-hook power-sgd-full-rank"),
                ("post-local-sgd", "--comm-hook post-local-sgd"),
            ]),
            choices(&[
                ("tiny buckets", "--bucket-cap-mb 0.0001"),
                ("one bucket", "--bucket-cap-mb 1000"),
            ]),
            choices(&[in_backward]),
            choices(&[groups]),
            choices(&[("delayed parameters", "--delayed-parameters awaited")]),
            choices(&[("aot-eager", "--compile aot-eager"), ("inductor", "--compile inductor")]),
            choices(&[("2 parameter groups", "--parameter-groups 2")]),
            choices(&[("GradScaler", "--loss-scale dynamic")]),
            choices(&[("resumed", "--resume-before 1 --optimizer adamw")]),
            clipping(),
        ],
        partners: choices(&[
            counts[0],
            counts[1],
            counts[2],
            find,
            graph,
            view,
            narrow,
            in_backward,
            groups,
        ]),
        shapes: shapes_of(Engine::Ddp, &[]),
    }
}
