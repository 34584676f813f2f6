//! The engine FSDP1: PyTorch's `FullyShardedDataParallel`.

mod axes;

use super::{EngineFacts, OF_TORCH, PYTHON_OF_TORCH, PythonSource};
use zprobe_model::spec::{Dtype, Point};

pub(super) static ROOM: EngineFacts = EngineFacts {
    title: "FSDP1",
    python: Some(PythonSource {
        trial: Some(include_str!("trial.py")),
        advice: "upgrade torch: FullyShardedDataParallel on the CPU works with 2.11",
        script: &[("script.py", include_str!("script.py"))],
        eyes: &[("eyes.py", include_str!("eyes.py"))],
        ..PYTHON_OF_TORCH
    }),
    axes: axes::axes,
    function: |_, _, point| match point {
        Point::Accumulator | Point::Reduced | Point::BeforeStep | Point::OptimizerInput => {
            Some("_post_backward_hook, _reduce_grad (torch/distributed/fsdp/_runtime_utils.py)")
        }
        _ => None,
    },
    // The parameters are fp32; FSDP1's mixed precision sets the dtype of the computation.
    parameters_in: |_| Dtype::Fp32,
    ..OF_TORCH
};
