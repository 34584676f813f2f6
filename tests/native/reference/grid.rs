//! The runs that are compared with the reference.

use zprobe_model::spec::{
    Dataflow, Dtype, Engine, Model, Offload, Optimizer, RunSpec, SpecRequest,
};

/// The approximate number of native runs that are compared every day.
pub const EVERYDAY: usize = 32;

/// The number of steps of every run.
const STEPS: usize = 3;

/// Plain SGD for dense data; its learning rate is no power of two.
const SGD: Optimizer = Optimizer::Sgd { lr: 0.05 };

/// Pairs of data and optimizer; only the results of the first pair are exact.
const DATA: [(Model, Optimizer); 4] = [
    (Model::Coded, Optimizer::EXACT_SGD),
    (Model::Mlp, Optimizer::ADAMW),
    (Model::Mlp, SGD),
    (Model::Coded, Optimizer::ADAMW),
];

/// Pairs of dtypes: that of the model, and that of the accumulation.
const DTYPES: [(Dtype, Dtype); 5] = [
    (Dtype::Bf16, Dtype::Fp32),
    (Dtype::Bf16, Dtype::Bf16),
    (Dtype::Fp16, Dtype::Fp32),
    (Dtype::Fp16, Dtype::Fp16),
    (Dtype::Fp32, Dtype::Fp32),
];

/// Every configuration that the native engine accepts.
pub fn native() -> Vec<RunSpec> {
    let mut specs: Vec<RunSpec> = Vec::new();
    for stage in 0..4 {
        for world_size in [2, 3, 4] {
            for ga in [1, 4] {
                for (model, optimizer) in DATA {
                    for (dtype, accum) in DTYPES {
                        for (dataflow, reduce_scatter) in [
                            (Some(Dataflow::Accumulator), None),
                            (Some(Dataflow::IpgBucket), None),
                            (Some(Dataflow::IpgBucket), Some(false)),
                        ] {
                            for offload in [Offload::None, Offload::Cpu] {
                                let request = SpecRequest {
                                    stage: Some(stage),
                                    world_size: Some(world_size),
                                    gradient_accumulation_steps: Some(ga),
                                    steps: Some(STEPS),
                                    model: Some(model),
                                    optimizer: Some(optimizer),
                                    dtype: Some(dtype),
                                    grad_accum_dtype: Some(accum),
                                    dataflow,
                                    reduce_scatter,
                                    offload: Some(offload),
                                    ..SpecRequest::default()
                                };
                                specs.extend(request.resolve());
                            }
                        }
                    }
                }
            }
        }
    }
    // Variations are tried with only one number of ranks and microbatches.
    specs.retain(|spec| {
        let is_plain = DATA[..2].contains(&(spec.model, spec.optimizer));
        let is_plain = is_plain && spec.offload == Offload::None;
        is_plain || (spec.world_size, spec.gradient_accumulation_steps) == (2, 4)
    });
    specs
}

/// The runs of a real engine. All engines are compared by the final parameters of the first run.
pub fn real(engine: Engine, full: bool) -> Vec<RunSpec> {
    let stages: &[Option<u8>] = match engine {
        Engine::DeepSpeed => &[Some(1), Some(2), Some(3)],
        _ => &[None],
    };
    let ranks: &[(usize, usize)] = if full { &[(2, 4), (3, 3), (4, 1)] } else { &[(2, 4)] };
    let data = if full { &DATA[..] } else { &DATA[..2] };
    let mut specs = Vec::new();
    for &stage in stages {
        for &(world_size, ga) in ranks {
            for &(model, optimizer) in data {
                for dtype in [Dtype::Bf16, Dtype::Fp32] {
                    // DDP has no master weights, and FSDP2 computes with copies of its own: their roundings
                    // in bf16 are no part of the reference.
                    let rounds = dtype == Dtype::Bf16 && engine != Engine::DeepSpeed;
                    if rounds && (model, optimizer) != DATA[0] {
                        continue;
                    }
                    let request = SpecRequest {
                        engine: Some(engine),
                        stage,
                        world_size: Some(world_size),
                        gradient_accumulation_steps: Some(ga),
                        steps: Some(STEPS),
                        model: Some(model),
                        optimizer: Some(optimizer),
                        dtype: Some(dtype),
                        // A busy machine may take long.
                        timeout_s: Some(900),
                        ..SpecRequest::default()
                    };
                    specs.push(request.resolve().expect("a run of a real engine"));
                }
            }
        }
    }
    specs
}
