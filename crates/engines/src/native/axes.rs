//! The values of the native engine's settings that are worth trying.

use crate::axes::{Axes, AxisChoice, choices, clipping, shapes_of};
use zprobe_model::spec::{Engine, Shape};

/// The pairs of a dtype of the model and a dtype of the accumulation.
const DTYPES: [(&str, &str); 5] =
    [("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp16", "fp16"), ("fp16", "fp32")];

pub(super) fn axes() -> Axes {
    let mut bases = Vec::new();
    for stage in 0..4 {
        for (dtype, accumulation) in DTYPES {
            let dataflows: &[&str] =
                if stage < 2 { &["accumulator", "ipg-bucket"] } else { &["ipg-bucket"] };
            bases.extend(dataflows.iter().map(|it| base(stage, dtype, accumulation, it)));
        }
    }
    let counts = [("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")];
    let overlap = ("overlap-comm", "--overlap-comm");
    let offload = ("offload", "--offload cpu");
    let no_scatter = ("no reduce-scatter", "--reduce-scatter false");
    let sizes = [
        ("tiny buckets", "--reduce-bucket-size 64"),
        ("one bucket", "--reduce-bucket-size 500000000"),
    ];
    Axes {
        factor_bases: bases.clone(),
        pair_bases: (1..4).map(|stage| base(stage, "bf16", "fp32", "ipg-bucket")).collect(),
        bases,
        factors: vec![
            choices(&counts),
            choices(&sizes),
            choices(&[("comm bf16", "--comm-dtype bf16"), ("comm fp32", "--comm-dtype fp32")]),
            choices(&[("mlp", "--model mlp"), ("adamw", "--optimizer adamw")]),
            choices(&[overlap, ("no overlap-comm", "--overlap-comm false"), offload]),
            choices(&[no_scatter, ("no contiguous-gradients", "--contiguous-gradients false")]),
            choices(&[("small all-gathers", "--allgather-bucket-size 64")]),
            choices(&[("2 parameter groups", "--parameter-groups 2")]),
            clipping(),
        ],
        partners: choices(&[counts[2], overlap, offload, no_scatter, sizes[0]]),
        shapes: shapes_of(
            Engine::Native,
            &[
                Shape::TupleOutput,
                Shape::DictOutput,
                Shape::DifferentStart,
                Shape::UnusedOnOddRanks,
                Shape::UnusedOnEvenRanks,
                Shape::ReversedOnOddRanks,
                Shape::WarmUp,
            ],
        ),
    }
}

fn base(stage: u8, dtype: &str, accumulation: &str, dataflow: &str) -> Vec<AxisChoice> {
    choices(&[
        (&format!("stage {stage}"), &format!("--stage {stage}")),
        (dtype, &format!("--dtype {dtype}")),
        (&format!("grad-accum {accumulation}"), &format!("--grad-accum-dtype {accumulation}")),
        (dataflow, &format!("--dataflow {dataflow}")),
    ])
}
