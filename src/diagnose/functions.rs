//! Functions of engines that make the buffer at a point of the journey: where to look in their
//! code.

use crate::spec::{Dataflow, Engine, Offload, RunSpec};
use crate::trace::Point;

use Point::{Accumulator, BeforeStep, MasterWeights, OptimizerInput, Parameters, Reduced};

/// Function and file, by class of the optimizer that wraps the inner one, and point.
const DEEPSPEED: &[(&str, Point, &str)] = &[
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

/// Function that makes the buffer at a point, in an engine's own names; none where it is not known.
pub fn function(spec: &RunSpec, class: Option<&str>, point: Point) -> Option<&'static str> {
    match spec.engine {
        Engine::Native => native(spec, point),
        Engine::DeepSpeed => {
            let class = class?;
            // The whole name is compared: subclasses and wrappers carry more than the class in
            // their name.
            let known = DEEPSPEED.iter().find(|(name, at, _)| class == *name && *at == point);
            known.map(|(.., function)| *function)
        }
        Engine::Ddp => match point {
            Accumulator => Some("AccumulateGrad, under DistributedDataParallel.no_sync"),
            Reduced | BeforeStep | OptimizerInput => {
                Some("Reducer::finalize_bucket_dense (torch/csrc/distributed/c10d/reducer.cpp)")
            }
            _ => None,
        },
        Engine::Fsdp2 => match point {
            Accumulator | Reduced | BeforeStep | OptimizerInput => Some(
                "FSDPParamGroup.post_backward, foreach_reduce \
                 (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)",
            ),
            _ => None,
        },
    }
}

/// File of zprobe's own engine that makes the buffer at a point.
fn native(spec: &RunSpec, point: Point) -> Option<&'static str> {
    Some(match point {
        Point::LocalGradient => return None,
        Accumulator if spec.dataflow == Some(Dataflow::IpgBucket) => {
            "src/bin/zprobe-rank/engine/ipg.rs"
        }
        Accumulator => "src/bin/zprobe-rank/engine/accumulator.rs",
        Reduced => "src/bin/zprobe-rank/engine/reduction.rs",
        BeforeStep if spec.offload == Offload::Cpu => "src/bin/zprobe-rank/engine/offload.rs",
        BeforeStep => "src/bin/zprobe-rank/engine/reduction.rs",
        OptimizerInput => "src/bin/zprobe-rank/engine/optimizer.rs",
        MasterWeights => "src/bin/zprobe-rank/engine/inner.rs",
        Parameters => "src/bin/zprobe-rank/engine/parameters.rs",
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::spec::SpecRequest;

    #[test]
    fn files_of_the_native_engine_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for dataflow in Dataflow::ALL {
            let request = SpecRequest { dataflow: Some(*dataflow), ..SpecRequest::default() };
            let spec = request.resolve().unwrap();
            for file in Point::ALL.iter().filter_map(|point| function(&spec, None, *point)) {
                assert!(root.join(file).is_file(), "{file}");
            }
        }
    }
}
