//! The functions of DeepSpeed that produce the recorded buffers.

use zprobe_model::spec::Point;
use zprobe_model::spec::Point::{Accumulator, BeforeStep, OptimizerInput, Parameters, Reduced};

/// The functions of DeepSpeed that produce the buffers, as (class that wraps the inner optimizer, point of the buffer,
/// function with its file).
const FUNCTIONS: &[(&str, Point, &str)] = &[
    ("BF16_Optimizer", Accumulator, "BF16_Optimizer.update_hp_grads (runtime/bf16_optimizer.py)"),
    ("BF16_Optimizer", Reduced, "DeepSpeedEngine.allreduce_gradients (runtime/engine.py)"),
    ("BF16_Optimizer", BeforeStep, "BF16_Optimizer.backward_epilogue (runtime/bf16_optimizer.py)"),
    ("BF16_Optimizer", OptimizerInput, "BF16_Optimizer.step (runtime/bf16_optimizer.py)"),
    ("BF16_Optimizer", Parameters, "BF16_Optimizer.update_lp_params (runtime/bf16_optimizer.py)"),
    (
        "DeepSpeedZeroOptimizer",
        Accumulator,
        "DeepSpeedZeroOptimizer.reduce_ready_partitions_and_remove_grads \
         (runtime/zero/stage_1_and_2.py)",
    ),
    (
        "DeepSpeedZeroOptimizer",
        Reduced,
        "DeepSpeedZeroOptimizer.reduce_ipg_grads (runtime/zero/stage_1_and_2.py)",
    ),
    (
        "DeepSpeedZeroOptimizer",
        BeforeStep,
        "DeepSpeedZeroOptimizer.independent_gradient_partition_epilogue \
         (runtime/zero/stage_1_and_2.py)",
    ),
    (
        "DeepSpeedZeroOptimizer",
        OptimizerInput,
        "DeepSpeedZeroOptimizer.step (runtime/zero/stage_1_and_2.py)",
    ),
    (
        "DeepSpeedZeroOptimizer",
        Parameters,
        "DeepSpeedZeroOptimizer.step, its all-gather (runtime/zero/stage_1_and_2.py)",
    ),
    (
        "DeepSpeedZeroOptimizer_Stage3",
        Accumulator,
        "DeepSpeedZeroOptimizer_Stage3.partition_grads (runtime/zero/stage3.py)",
    ),
    (
        "DeepSpeedZeroOptimizer_Stage3",
        Reduced,
        "DeepSpeedZeroOptimizer_Stage3.__avg_scatter_grads (runtime/zero/stage3.py)",
    ),
    (
        "DeepSpeedZeroOptimizer_Stage3",
        BeforeStep,
        "DeepSpeedZeroOptimizer_Stage3.partition_grads (runtime/zero/stage3.py)",
    ),
    (
        "DeepSpeedZeroOptimizer_Stage3",
        OptimizerInput,
        "DeepSpeedZeroOptimizer_Stage3.step (runtime/zero/stage3.py)",
    ),
    (
        "DeepSpeedZeroOptimizer_Stage3",
        Parameters,
        "DeepSpeedZeroOptimizer_Stage3._reassign_or_swap_out_partitioned_parameters \
         (runtime/zero/stage3.py)",
    ),
    ("FP16_UnfusedOptimizer", Reduced, "DeepSpeedEngine.allreduce_gradients (runtime/engine.py)"),
    (
        "FP16_UnfusedOptimizer",
        OptimizerInput,
        "FP16_UnfusedOptimizer.step (runtime/fp16/unfused_optimizer.py)",
    ),
    (
        "FP16_UnfusedOptimizer",
        Parameters,
        "FP16_UnfusedOptimizer.step (runtime/fp16/unfused_optimizer.py)",
    ),
];

/// The function that produces the buffer at a point if `class` wraps the inner optimizer; `None` for unknown classes.
pub(super) fn function(class: &str, point: Point) -> Option<&'static str> {
    // Only the whole name matches, because subclasses and wrappers have longer names.
    let known = FUNCTIONS.iter().find(|(name, at, _)| class == *name && *at == point);
    known.map(|(.., function)| *function)
}
