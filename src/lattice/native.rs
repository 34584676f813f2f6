//! What zprobe's own engine offers.

use super::{Lattice, choices};
use crate::spec::Engine;

pub(super) fn lattice() -> Lattice {
    let mut bases = Vec::new();
    for (dtype, accumulation) in [("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "fp32")] {
        for dataflow in ["accumulator", "ipg-bucket"] {
            bases.push(choices(&[
                (dtype, &format!("--dtype {dtype}")),
                (
                    &format!("grad-accum {accumulation}"),
                    &format!("--grad-accum-dtype {accumulation}"),
                ),
                (dataflow, &format!("--dataflow {dataflow}")),
            ]));
        }
    }
    let counts = [("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")];
    Lattice {
        engine: Engine::Native,
        factor_bases: bases.clone(),
        pair_bases: Vec::new(),
        bases,
        factors: vec![
            choices(&counts),
            choices(&[
                ("tiny buckets", "--reduce-bucket-size 64"),
                ("one bucket", "--reduce-bucket-size 500000000"),
            ]),
            choices(&[("comm bf16", "--comm-dtype bf16"), ("comm fp32", "--comm-dtype fp32")]),
            choices(&[("mlp", "--model mlp"), ("adamw", "--optimizer adamw")]),
        ],
        partners: Vec::new(),
        shapes: Vec::new(),
        grid: vec![
            choices(&counts),
            choices(&[("mlp", "--model mlp")]),
            choices(&[("tiny buckets", "--reduce-bucket-size 64")]),
        ],
    }
}
