//! The values of DeepSpeed's settings that are worth trying.

use crate::axes::{Axes, AxisChoice, choices, clipping, shapes_of};
use zprobe_model::spec::{Engine, Shape};

/// The dtypes of a model, each with the dtypes in which the model's gradients can be accumulated, the model's dtype
/// first.
const DTYPES: &[(&str, &[&str])] =
    &[("bf16", &["bf16", "fp32"]), ("fp16", &["fp16", "fp32"]), ("fp32", &["fp32"])];

/// The ZeRO stages.
const STAGES: [&str; 4] = ["0", "1", "2", "3"];

pub(super) fn axes() -> Axes {
    let mut bases = Vec::new();
    for stage in STAGES {
        for (dtype, accumulation) in DTYPES {
            bases.extend(accumulation.iter().map(|accum| base(stage, dtype, accum)));
        }
    }
    // Only one mix of dtypes has a separate optimizer class: bf16 accumulated in fp32, except in stage 0.
    let factor_bases = STAGES.iter().flat_map(|stage| {
        let mixed = (*stage != "0").then(|| base(stage, "bf16", "fp32"));
        let pure = ["bf16", "fp16", "fp32"].map(|dtype| base(stage, dtype, dtype));
        pure.into_iter().chain(mixed)
    });
    // Models with experts fail in other ways, so the zoo tries this shape instead.
    let shapes = shapes_of(Engine::DeepSpeed, &[Shape::Experts]);
    Axes {
        bases,
        factor_bases: factor_bases.collect(),
        factors: vec![
            counts(),
            choices(&[("offload", "--offload cpu")]),
            choices(&[
                ("overlap-comm", "--overlap-comm true"),
                ("no overlap-comm", "--overlap-comm false"),
            ]),
            choices(&[
                ("contiguous-gradients", "--contiguous-gradients true"),
                ("no contiguous-gradients", "--contiguous-gradients false"),
            ]),
            choices(&[
                ("reduce-scatter", "--reduce-scatter true"),
                ("no reduce-scatter", "--reduce-scatter false"),
                ("predivide", "--reduce-scatter false --deepspeed-set gradient_predivide_factor=2"),
                ("prescale", "--reduce-scatter false --deepspeed-set prescale_gradients=true"),
            ]),
            choices(&[
                ("tiny buckets", "--reduce-bucket-size 64"),
                ("one bucket", "--reduce-bucket-size 500000000"),
            ]),
            choices(&[("immediate-grad-update", "--immediate-grad-update true")]),
            clipping(),
            choices(&[
                ("comm fp32", "--comm-dtype fp32"),
                ("comm bf16", "--comm-dtype bf16"),
                ("comm fp16", "--comm-dtype fp16"),
            ]),
            choices(&[("loss scale of the loop", "--override-loss-scale 1024")]),
            choices(&[(
                "round robin",
                "--deepspeed-set zero_optimization.round_robin_gradients=true",
            )]),
            choices(&[(
                "single-rank buckets",
                "--deepspeed-set zero_optimization.use_multi_rank_bucket_allreduce=false",
            )]),
            choices(&[("alignment", "--deepspeed-set zero_optimization.parameter_alignment=true")]),
            choices(&[
                ("sequence parallelism", "--nproc-per-node 4 --sequence-parallel 2"),
                (
                    "sequence parallelism by a mesh",
                    "--nproc-per-node 4 --sequence-parallel 2 --sequence-groups mesh",
                ),
            ]),
            choices(&[("2 parameter groups", "--parameter-groups 2")]),
            choices(&[
                ("resumed", "--resume-before 1 --optimizer adamw"),
                ("Muon", "--optimizer muon"),
            ]),
            choices(&[(
                "small sub-groups",
                "--deepspeed-set zero_optimization.sub_group_size=100",
            )]),
        ],
        // In stage 1, the dtypes of the base choose between two optimizers of DeepSpeed.
        pair_bases: vec![
            base("1", "bf16", "fp32"),
            base("1", "bf16", "bf16"),
            base("2", "bf16", "fp32"),
            base("3", "bf16", "fp32"),
            base("0", "bf16", "bf16"),
        ],
        partners: choices(&[
            ("ga 1", "--ga 1"),
            ("ga 3", "--ga 3"),
            ("3 ranks", "--nproc-per-node 3"),
            ("offload", "--offload cpu"),
            ("overlap-comm", "--overlap-comm true"),
            ("no contiguous-gradients", "--contiguous-gradients false"),
            ("no reduce-scatter", "--reduce-scatter false"),
            ("clipping always", "--gradient-clipping 0.125"),
        ]),
        shapes,
    }
}

fn base(stage: &str, dtype: &str, accumulation: &str) -> Vec<AxisChoice> {
    vec![
        AxisChoice::new(&format!("stage {stage}"), &format!("--stage {stage}")),
        AxisChoice::new(dtype, &format!("--dtype {dtype}")),
        AxisChoice::new(
            &format!("grad-accum {accumulation}"),
            &format!("--grad-accum-dtype {accumulation}"),
        ),
    ]
}

/// The numbers of microbatches and of ranks that are tried besides the defaults (4 microbatches, 2 ranks).
fn counts() -> Vec<AxisChoice> {
    choices(&[("ga 1", "--ga 1"), ("ga 3", "--ga 3"), ("3 ranks", "--nproc-per-node 3")])
}
