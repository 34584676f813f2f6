//! From what was asked for to what is run: every default is filled in.

use bytesize::ByteSize;

use super::device::Placement;
use super::engines::{self, MIB, check_accumulation};
use super::fault::check_fault;
use super::recording::CODE_STEPS;
use super::validate::{check_exactness, check_numbers, check_shapes};
use super::{
    BackendChoice, CommHook, Dataflow, DdpOptions, DeviceChoice, Dtype, Engine, Fault,
    Fsdp2Options, Gpus, Invalid, LossScale, Model, Observation, Offload, Optimizer, Plan,
    Recording, RunSpec, Shape, deepspeed,
};

/// Ranks when nobody says how many: the fewest that can disagree.
pub const DEFAULT_WORLD_SIZE: usize = 2;

/// What was asked for on the command line, in the environment and in files. A value that nobody
/// gave is `None`.
#[derive(Clone, Debug, Default)]
pub struct SpecRequest {
    /// `--engine`
    pub engine: Option<Engine>,
    /// `--stage`
    pub stage: Option<u8>,
    /// `--nproc-per-node`, as a number
    pub world_size: Option<usize>,
    /// `--nproc-per-node gpu`
    pub rank_per_gpu: bool,
    /// `--device`
    pub device: Option<DeviceChoice>,
    /// `--backend`
    pub backend: Option<BackendChoice>,
    /// What the native engine finds of CUDA; none where nobody looked, or there was no need to.
    pub gpus: Option<Gpus>,
    /// `--ga`
    pub gradient_accumulation_steps: Option<usize>,
    /// `--steps`
    pub steps: Option<usize>,
    /// `--dtype`
    pub dtype: Option<Dtype>,
    /// `--grad-accum-dtype`
    pub grad_accum_dtype: Option<Dtype>,
    /// `--comm-dtype`
    pub comm_dtype: Option<Dtype>,
    /// `--dataflow`
    pub dataflow: Option<Dataflow>,
    /// `--reduce-bucket-size`
    pub reduce_bucket_size: Option<usize>,
    /// `--allgather-bucket-size`
    pub allgather_bucket_size: Option<usize>,
    /// `--parameter-groups`
    pub parameter_groups: Option<usize>,
    /// `--offload`
    pub offload: Option<Offload>,
    /// `--overlap-comm`
    pub overlap_comm: Option<bool>,
    /// `--contiguous-gradients`
    pub contiguous_gradients: Option<bool>,
    /// `--reduce-scatter`
    pub reduce_scatter: Option<bool>,
    /// `--immediate-grad-update`
    pub immediate_grad_update: Option<bool>,
    /// `--gradient-clipping`
    pub gradient_clipping: Option<f64>,
    /// `--loss-scale`
    pub loss_scale: Option<LossScale>,
    /// `--bucket-cap-mb`
    pub bucket_cap_mb: Option<f64>,
    /// `--find-unused-parameters`
    pub find_unused_parameters: Option<bool>,
    /// `--static-graph`
    pub static_graph: Option<bool>,
    /// `--gradient-as-bucket-view`
    pub gradient_as_bucket_view: Option<bool>,
    /// `--comm-hook`
    pub comm_hook: Option<CommHook>,
    /// `--reshard-after-forward`
    pub reshard_after_forward: Option<bool>,
    /// The content of `--deepspeed-config`
    pub deepspeed_config: Option<serde_json::Value>,
    /// `--observe`
    pub observe: Option<Observation>,
    /// `--poison-memory`
    pub poison_memory: Option<bool>,
    /// `--shape`
    pub shapes: Vec<Shape>,
    /// `--model`
    pub model: Option<Model>,
    /// `--parameters`
    pub parameters: Option<usize>,
    /// `train_micro_batch_size_per_gpu`
    pub micro_batch_size: Option<usize>,
    /// `--optimizer`, or a DeepSpeed file's `optimizer`
    pub optimizer: Option<Optimizer>,
    /// `--seed`
    pub seed: Option<u64>,
    /// `--inject`
    pub inject: Option<Fault>,
    /// `--timeout`
    pub timeout_s: Option<u64>,
    /// `--trace-budget`
    pub trace_budget: Option<ByteSize>,
}

impl SpecRequest {
    /// Fills in every default and refuses every contradiction.
    ///
    /// # Errors
    /// The first contradiction found.
    pub fn resolve(mut self) -> Result<RunSpec, Invalid> {
        let engine = self.engine.unwrap_or(Engine::Native);
        self.check_engine(engine)?;
        let stage = self.resolve_stage(engine)?;
        let dtype = self.dtype.unwrap_or(Dtype::Bf16);
        let grad_accum_dtype = self.resolve_grad_accum_dtype(engine, dtype);
        let dataflow = self.resolve_dataflow(engine, stage, dtype, grad_accum_dtype);
        // DeepSpeed communicates in the dtype of the buffer that it reduces unless told otherwise:
        // the flat accumulator's, or the model's for IPG buckets.
        let comm_dtype = self.comm_dtype.or(match (engine, dataflow) {
            (_, Some(Dataflow::Accumulator)) => Some(grad_accum_dtype),
            (_, Some(Dataflow::IpgBucket)) => Some(dtype),
            (Engine::Ddp, None) => Some(self.comm_hook.map_or(dtype, |hook| hook.dtype(dtype))),
            (Engine::Fsdp2, None) => Some(Dtype::Fp32),
            (_, None) => None,
        });
        check_accumulation(engine, dtype, grad_accum_dtype)?;
        let at_least_one = |flag, asked: Option<usize>, default| match asked {
            Some(0) => Err(Invalid::Zero { flag }),
            Some(count) => Ok(count),
            None => Ok(default),
        };
        let Placement { device, backend, world_size } = self.place(engine)?;
        let ga = at_least_one("--ga", self.gradient_accumulation_steps, 4)?;
        let steps = at_least_one("--steps", self.steps, 2)?;
        let micro_batch_size = at_least_one("--micro-batch-size", self.micro_batch_size, 4)?;
        // A real engine is imported first, which a busy machine can take a minute for.
        let timeout_s = self.timeout_s.unwrap_or(if engine == Engine::Native { 60 } else { 180 });
        if timeout_s == 0 {
            return Err(Invalid::Zero { flag: "--timeout" });
        }
        let model = self.model.unwrap_or(Model::Coded);
        let seed = self.seed.unwrap_or(0);
        let mut shapes = std::mem::take(&mut self.shapes);
        shapes.sort_unstable();
        shapes.dedup();
        let mut spec = RunSpec {
            engine,
            stage,
            world_size,
            device,
            backend,
            gradient_accumulation_steps: ga,
            steps,
            code_steps: (steps > CODE_STEPS).then_some(CODE_STEPS),
            dtype,
            grad_accum_dtype,
            comm_dtype,
            dataflow,
            // Set below: how large a bucket should be follows from the model.
            reduce_bucket_size: 1,
            offload: self.offload.unwrap_or(Offload::None),
            allgather_bucket_size: None,
            parameter_groups: None,
            overlap_comm: self.overlap_comm,
            contiguous_gradients: self.contiguous_gradients,
            reduce_scatter: self.reduce_scatter,
            immediate_grad_update: self.immediate_grad_update,
            gradient_clipping: self.gradient_clipping.unwrap_or(0.0),
            loss_scale: self.loss_scale.unwrap_or(LossScale::DEFAULT),
            ddp: None,
            fsdp2: (engine == Engine::Fsdp2).then(|| Fsdp2Options {
                reshard_after_forward: self.reshard_after_forward.unwrap_or(true),
            }),
            deepspeed_config: None,
            observe: self.observe.unwrap_or(Observation::Full),
            poison_memory: self.poison_memory.unwrap_or(false),
            model,
            parameters: self.parameters,
            shapes,
            micro_batch_size,
            optimizer: self.optimizer.unwrap_or(match model {
                Model::Coded => Optimizer::EXACT_SGD,
                // DDP has no master weights, and in fp16 Adam's epsilon is 0: where a gradient is, it
                // divides 0 by 0.
                Model::Mlp if engine == Engine::Ddp && dtype == Dtype::Fp16 => Optimizer::EXACT_SGD,
                Model::Mlp => Optimizer::ADAMW,
            }),
            seed,
            inject: self.inject,
            timeout_s,
            recording: self
                .trace_budget
                .map_or_else(Recording::default, |budget| Recording::within(budget.0)),
        };
        if engine == Engine::Native {
            self.fill_native(&mut spec)?;
        }
        spec.check_size()?;
        check_numbers(&spec)?;
        let default_bucket = Plan::default_bucket_size(&spec);
        spec.reduce_bucket_size =
            at_least_one("--reduce-bucket-size", self.reduce_bucket_size, default_bucket)?;
        spec.ddp = (engine == Engine::Ddp).then(|| DdpOptions {
            bucket_cap_mb: self.bucket_cap_mb.unwrap_or(default_bucket as f64 * 4.0 / MIB),
            find_unused_parameters: self
                .find_unused_parameters
                .unwrap_or_else(|| spec.shapes.iter().any(|shape| shape.leaves_unused())),
            static_graph: self.static_graph.unwrap_or(false),
            gradient_as_bucket_view: self.gradient_as_bucket_view.unwrap_or(false),
            comm_hook: self.comm_hook.unwrap_or(CommHook::None),
        });
        if engine == Engine::DeepSpeed {
            let file = self.deepspeed_config.take();
            spec.deepspeed_config = Some(deepspeed::complete(file, &self, &spec));
        }
        check_exactness(&spec)?;
        check_shapes(&spec)?;
        engines::check_shapes(&spec)?;
        engines::check_ddp(&spec)?;
        check_fault(&spec)?;
        spec.recording = Recording::plan(&spec)?;
        Ok(spec)
    }
}
