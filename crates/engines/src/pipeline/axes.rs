//! The values of the pipelining engine's settings that are worth trying.

use crate::axes::{Axes, choices, shapes_of};
use zprobe_model::spec::{Engine, PIPELINE_SHAPES, Schedule, Shape};

pub(super) fn axes() -> Axes {
    let schedules = Schedule::ALL.iter().map(|schedule| format!("--schedule {schedule}"));
    let schedules: Vec<String> = schedules.collect();
    let bases: Vec<_> = schedules
        .iter()
        .flat_map(|schedule| {
            [("bf16", "--dtype bf16"), ("fp32", "--dtype fp32")].map(|dtype| (schedule, dtype))
        })
        .map(|(schedule, dtype)| choices(&[(&schedule["--schedule ".len()..], schedule), dtype]))
        .collect();
    let ranks = ("4 ranks", "--nproc-per-node 4 --ga 8");
    let ddp = ("two pipelines, DDP", "--nproc-per-node 4 --pipelines 2 --data-parallel ddp");
    let fsdp2 = ("two pipelines, FSDP2", "--nproc-per-node 4 --pipelines 2 --data-parallel fsdp2");
    let microbatches = ("ga 8", "--ga 8");
    let by_loss = ("divided by the loss", "--scale-grads false");
    let mut others = Shape::ALL.to_vec();
    others.retain(|shape| !PIPELINE_SHAPES.contains(shape));
    Axes {
        factor_bases: bases.clone(),
        pair_bases: bases[..2].to_vec(),
        bases,
        factors: vec![
            choices(&[ranks, ddp, fsdp2]),
            choices(&[microbatches]),
            choices(&[by_loss]),
            choices(&[("2 parameter groups", "--parameter-groups 2")]),
        ],
        partners: choices(&[ranks, ddp, fsdp2, microbatches, by_loss]),
        shapes: shapes_of(Engine::Pipeline, &others),
    }
}
