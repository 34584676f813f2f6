//! Resolves a request into a complete specification: every default is filled in.

use super::checks::{self, MIB, check_accumulation};
use super::device::Placement;
use super::engine::Sums;
use super::fault::check_fault;
use super::recording::CODE_STEPS;
use super::recording::default_budget;
use super::settings;
use super::validate::{
    check_exactness, check_grad_scaler, check_norm_type, check_optimizer, check_resumption,
    check_shapes,
};
use super::{
    Backend, DeepSpeedFile, DelayedParameters, Device, Dtype, EngineSettings, Model, Optimizer,
    Plan, Recording, Refusal, RunSpec, SpecRequest, ddp, deepspeed, fsdp1, fsdp2, pipeline,
};

/// The default number of ranks: the fewest that can disagree.
pub const DEFAULT_WORLD_SIZE: usize = 2;

impl SpecRequest {
    /// Fills in every default and refuses every contradiction.
    ///
    /// # Errors
    /// Fails with all contradictions of the request.
    pub fn resolve(mut self) -> Result<RunSpec, Refusal> {
        let engine = self.engine.unwrap_or_default();
        let traits = engine.traits();
        let mut refusal = Refusal::default();
        // From here on, a refused setting counts as not requested.
        for setting in settings::ALL {
            if let Some(problem) = setting.refusal(&self, engine) {
                refusal.extend([problem]);
                setting.clear(&mut self);
            }
        }
        let file = self.deepspeed_config.take();
        let asked = self.or_default(engine);
        let (stage, dtype, model) = (asked.stage(), asked.dtype(), asked.model());
        let accum = self.grad_accum_dtype.unwrap_or_else(|| (traits.accumulates_in)(&self, dtype));
        let sums = Sums { stage, dtype, accum };
        let dataflow = (traits.dataflow)(&self, &sums);
        let comm_dtype =
            self.comm_dtype.or_else(|| (traits.communicates_in)(&self, &sums, dataflow));
        refusal.unless(check_accumulation(engine, dtype, accum));
        let on_cpu = Placement {
            device: Device::Cpu,
            backend: Backend::Gloo,
            world_size: self.world_size.unwrap_or(DEFAULT_WORLD_SIZE),
        };
        let placement = refusal.unless(self.place(engine)).unwrap_or(on_cpu);
        let Placement { device, backend, world_size } = placement;
        let mut shapes = self.shapes.clone();
        shapes.sort_unstable();
        shapes.dedup();
        let steps = asked.steps();
        let settings = (traits.settings)(&self, &sums, dataflow, &shapes);
        let mut spec = RunSpec {
            settings,
            stage,
            world_size,
            device,
            backend,
            gradient_accumulation_steps: asked.gradient_accumulation_steps(),
            steps,
            code_steps: (steps > CODE_STEPS).then_some(CODE_STEPS),
            resume_before: self.resume_before,
            dtype,
            grad_accum_dtype: accum,
            comm_dtype,
            // Set below, because the default bucket size follows from the model.
            reduce_bucket_size: 1,
            offload: asked.offload(),
            gradient_clipping: asked.gradient_clipping(),
            norm_type: asked.norm_type(),
            loss_scale: asked.loss_scale(),
            observe: asked.observe(),
            poison_memory: asked.poison_memory(),
            parameter_groups: Some(asked.parameter_groups()),
            model,
            parameters: self.parameters,
            shapes,
            micro_batch_size: asked.micro_batch_size(),
            optimizer: self.optimizer.unwrap_or(match model {
                Model::Coded => Optimizer::EXACT_SGD,
                // In fp16, Adam's epsilon is 0, so Adam divides 0 by 0 where a gradient is 0.
                Model::Mlp if dtype == Dtype::Fp16 && !traits.has_master_weights => {
                    Optimizer::EXACT_SGD
                }
                Model::Mlp => Optimizer::ADAMW,
            }),
            seed: asked.seed(),
            timeout_s: asked.timeout_s(),
            recording: Recording::within(
                self.trace_budget.map_or_else(|| default_budget(world_size), |it| it.0),
            ),
        };
        refusal.extend(self.check_native(&spec));
        let default_bucket = Plan::default_bucket_size(&spec);
        spec.reduce_bucket_size = self.reduce_bucket_size.unwrap_or(default_bucket);
        let is_passed_on = traits.deepspeed_file == DeepSpeedFile::PassedOn;
        let config = is_passed_on.then(|| deepspeed::complete(file, &self, &spec));
        match &mut spec.settings {
            EngineSettings::DeepSpeed(options) => options.config = config,
            EngineSettings::Ddp(options) if self.bucket_cap_mb.is_none() => {
                options.bucket_cap_mb = match options.comm_hook {
                    // PowerSGD's collectives follow one another in callbacks: over Gloo, the collectives of several
                    // buckets come in any order.
                    hook if hook.is_power_sgd() => 25.0,
                    // With delayed parameters, DDP takes only whole numbers.
                    _ if options.delayed_parameters != DelayedParameters::None => 25.0,
                    _ => default_bucket as f64 * 4.0 / MIB,
                };
            }
            _ => {}
        }
        refusal.extend(check_exactness(&spec, &self));
        refusal.extend(check_grad_scaler(&spec));
        refusal.extend(check_optimizer(&spec));
        refusal.extend(check_norm_type(&spec));
        refusal.extend(check_resumption(&spec));
        refusal.extend(check_shapes(&spec));
        refusal.extend(checks::check_shapes(&spec));
        refusal.extend(ddp::check(&spec));
        refusal.extend(fsdp1::check(&spec));
        refusal.extend(fsdp2::check(&spec));
        refusal.extend(pipeline::check(&spec));
        refusal.extend(checks::check_deepspeed(&spec));
        refusal.unless(check_fault(&spec));
        refusal.into_result()?;
        spec.recording = Recording::plan(&spec)?;
        Ok(spec)
    }
}
