//! The native engine: ZeRO stages 0 to 3 with gradient accumulation, modelled after DeepSpeed.
//!
//! A step runs forward and backward `GA` times. At the gradient accumulation boundary, the engine runs the remaining
//! reductions, the inner optimizer's step on this rank's partition of the fp32 master weights, and an all-gather of the
//! updated parameters. A [`flow::GradientFlow`] stores the gradients between backward and the inner optimizer.
//!
//! The code of this module has no deliberate faults. [`crate::assembly`] puts the parts together, and replaces a sound
//! part by a faulty one if a fault is injected.
//!
//! | module | content |
//! |------|---------------|
//! | [`context`], [`settings`], [`groups`] | data that all parts share: run, numbers, process groups |
//! | [`partitioning`] | the owner of each part of a parameter |
//! | [`parameters`] | gathering and releasing parameters |
//! | [`flow`] | the trait for the flow of gradients |
//! | [`hooks`], [`bucket`], [`ipg`] | the flow through buckets |
//! | [`accumulator`] | the flow through a flat accumulator |
//! | [`reduction`] | the reduction of buckets to the owners |
//! | [`offload`] | the copy of gradients to the host |
//! | [`scaler`], [`clip`], [`inner`], [`optimizer`] | the optimizer step |

pub mod accumulator;
pub mod bucket;
pub mod clip;
pub mod context;
pub mod flat;
pub mod flow;
pub mod groups;
pub mod hooks;
pub mod inner;
pub mod ipg;
mod offload;
pub mod optimizer;
pub mod parameters;
pub mod partitioning;
pub mod reduction;
pub mod scaler;
pub mod settings;
mod stopwatch;

use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use tch::{Kind, Tensor};
use zprobe_model::trace::{Event, LayoutName, ParamInfo, Phase, Point, combined_digest};

use self::context::{Context, Microbatch};
use self::hooks::{Hooks, SharedFlow};
use self::optimizer::ShardedOptimizer;
use self::parameters::ModelWeights;
use self::stopwatch::Stopwatch;
use crate::collective::Collective;
use crate::model::ProbeModel;
use crate::recorder::BufferPieces;
use crate::sampler::Sampler;
use crate::shim::autograd::walk_graph;

/// The native engine of one rank, made of its replaceable parts.
pub struct Engine {
    /// The context that all parts of the engine share.
    pub context: Rc<Context>,
    /// The model with its data.
    pub model: Box<dyn ProbeModel>,
    /// The model's parameters.
    pub parameters: Box<dyn ModelWeights>,
    /// The flow of gradients to the optimizer.
    pub flow: SharedFlow,
    /// The hooks that pass gradients to the flow during backward; if `None`, the flow gets the gradients after
    /// backward.
    pub hooks: Option<Hooks>,
    /// The sharded optimizer.
    pub optimizer: ShardedOptimizer,
}

impl Engine {
    /// Runs all steps of the run.
    pub fn run(&mut self) -> Result<()> {
        self.describe()?;
        self.record(None)?;
        let accumulation_steps = self.context.spec.gradient_accumulation_steps;
        for step in 0..self.context.spec.steps {
            let mut watch = Stopwatch::start();
            for index in 0..accumulation_steps {
                let parts = self.model.parts(step, index);
                for part in 0..parts {
                    let complete = part + 1 == parts;
                    let boundary = complete && index + 1 == accumulation_steps;
                    let scale = self.optimizer.scale();
                    let microbatch = Microbatch { step, index, complete, boundary, scale };
                    watch.pause(|| self.model.prepare(step, index, part))?;
                    self.backward(microbatch)?;
                    if boundary {
                        self.step(microbatch, &watch)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn describe(&self) -> Result<()> {
        let Context { plan, partitioning, recorder, spec, settings, .. } = &*self.context;
        let params = plan
            .params()
            .iter()
            .map(|param| ParamInfo {
                name: param.name.clone(),
                shape: param.shape.clone(),
                trainable: param.trainable,
                ranks: Vec::new(),
            })
            .collect();
        recorder.emit(Event::Model { params })?;
        for (layout, segments) in [
            (LayoutName::Full, plan.segments()),
            (LayoutName::Partition, partitioning.layout(settings.owner)),
        ] {
            recorder.emit(Event::Layout { layout, segments, sampled: false })?;
        }
        recorder.settle(spec, Sampler::of(spec, plan, partitioning, settings.owner))?;
        recorder.emit(Event::OptimizerChosen {
            class: self.flow.borrow().class().to_owned(),
            inner: spec.optimizer.name().to_owned(),
        })
    }

    /// Runs the forward and the backward pass of one loss of a microbatch.
    fn backward(&mut self, microbatch: Microbatch) -> Result<()> {
        let Microbatch { step, index, .. } = microbatch;
        let context = Rc::clone(&self.context);
        context.phase(microbatch, Phase::Forward)?;
        self.parameters.gather()?;
        let loss = self.model.loss()?;
        let value = loss.double_value(&[]);
        context.recorder.emit(Event::Loss {
            step,
            microbatch: index,
            value: value.is_finite().then_some(value),
        })?;
        let loss = loss / context.settings.loss_divisor * microbatch.scale;
        let graph = walk_graph(&loss, self.model.parameters())?;
        context.recorder.emit(Event::GraphWalked {
            step,
            microbatch: index,
            accumulate_grad_nodes: graph.accumulate_grad_nodes,
            params: graph.params,
        })?;
        if !self.model.is_coded() && context.recorder.wants(Point::LocalGradient) {
            self.record_local_gradient(&loss, microbatch)?;
        }
        self.flow.borrow_mut().begin(microbatch)?;
        context.phase(microbatch, Phase::Backward)?;
        match &self.hooks {
            Some(hooks) => {
                let fired = hooks.backward(&loss)?;
                let (microbatch, arrived) = (index, None);
                context.recorder.emit(Event::HooksFired { step, microbatch, fired, arrived })?;
            }
            None => {
                loss.f_backward()?;
                context.phase(microbatch, Phase::Accumulate)?;
                self.hand_over()?;
            }
        }
        let mut flow = self.flow.borrow_mut();
        flow.end()?;
        if flow.reduces() {
            context.phase(microbatch, Phase::Reduce)?;
            flow.reduce()?;
        }
        self.parameters.release()
    }

    /// Passes all gradients of a backward pass to the flow.
    fn hand_over(&self) -> Result<()> {
        let params = self.model.parameters();
        let mut with_gradient = (0..params.len()).filter(|&param| params[param].grad().defined());
        with_gradient.try_for_each(|param| self.flow.borrow_mut().arrived(param))
    }

    /// Records the gradient of only this microbatch, which autograd computes without any hook or buffer. The loss has
    /// the engine's loss scale, because small gradients would underflow in fp16 without the scale.
    fn record_local_gradient(&self, loss: &Tensor, microbatch: Microbatch) -> Result<()> {
        let params = self.model.parameters();
        let gradients = Tensor::f_run_backward(&[loss], params, true, false)?;
        let tensors: Vec<Tensor> = gradients.iter().map(|g| g.reshape([-1])).collect();
        let pieces = BufferPieces { tensors, kind: params[0].kind(), scale: 1.0 };
        self.context.record(microbatch, (Point::LocalGradient, LayoutName::Full), pieces)
    }

    /// Takes the optimizer step at the gradient accumulation boundary.
    fn step(&mut self, boundary: Microbatch, watch: &Stopwatch) -> Result<()> {
        let gradient = self.flow.borrow_mut().partition_gradient()?;
        self.optimizer.step(gradient, &mut *self.parameters, boundary)?;
        self.flow.borrow_mut().zero_grad()?;
        let (step, engine_ns) = (boundary.step, watch.elapsed_ns());
        self.record(Some(step))?;
        let total_ns = watch.elapsed_ns();
        self.context.recorder.emit(Event::StepTimed { step, engine_ns, total_ns })?;
        self.exchange_digests(boundary)
    }

    /// Records the master weights and the parameters.
    fn record(&mut self, step: Option<usize>) -> Result<()> {
        self.optimizer.record(step)?;
        self.parameters.record(step)
    }

    /// All-gathers the combined digest of all buffers recorded since the last exchange, over the engine's own process
    /// group.
    fn exchange_digests(&self, boundary: Microbatch) -> Result<()> {
        let context = &self.context;
        context.phase(boundary, Phase::Digests)?;
        let digests = context.recorder.take_digests();
        let combined = combined_digest(digests.iter().map(String::as_str));
        let own = u64::from_str_radix(&combined, 16)?.cast_signed();
        let own = Tensor::f_from_slice(&[own])?.to_device(context.device);
        let gathered = context.zeros(context.spec.world_size, Kind::Int64)?;
        let gather = Collective::AllGather { output: &gathered, input: &own };
        context.groups.digests.run(gather, "digests")?;
        let gathered: Vec<i64> = gathered.try_into()?;
        let digests =
            gathered.iter().map(|digest| format!("{:016x}", digest.cast_unsigned())).collect();
        let digests = Arc::new(digests);
        context.recorder.emit(Event::DigestsGathered { step: boundary.step, digests })
    }
}
