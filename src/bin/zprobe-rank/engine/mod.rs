//! The native engine: ZeRO stages 0 to 3 with gradient accumulation, as DeepSpeed does it.
//!
//! A step is `GA` times forward and backward, then the gradient accumulation boundary: what is left
//! to reduce, the inner optimizer's step on this rank's partition of the fp32 master weights, and an
//! all-gather of the updated parameters. Where gradients wait in between is the business of a
//! [`GradientFlow`]; faults (`--inject`) sit at the points of the dataflow that they disturb.
//!
//! | room | what is in it |
//! |------|---------------|
//! | [`zprobe::spec::partitioning`] | who owns what: pure |
//! | [`parameters`] | the parameters, gathered and released |
//! | [`hooks`], [`bucket`], [`ipg`] | gradients on their way into buckets |
//! | [`accumulator`] | gradients in a flat accumulator |
//! | [`reduction`] | buckets on their way to the owners |
//! | [`offload`] | gradients on their way to the host |
//! | [`scaler`], [`clip`], [`inner`], [`optimizer`] | the step |

mod accumulator;
mod bucket;
mod clip;
mod context;
mod flat;
mod hooks;
mod inner;
mod ipg;
mod offload;
mod optimizer;
mod parameters;
mod reduction;
mod scaler;
mod stopwatch;

use std::rc::Rc;

use anyhow::{Result, bail};
use tch::{Kind, Tensor};
use zprobe::spec::{Dataflow, Fault};
use zprobe::trace::{Event, LayoutName, ParamInfo, Phase, Point, combined_digest};

use self::accumulator::Accumulator;
pub use self::context::Context;
use self::context::Microbatch;
use self::flat::narrow;
use self::ipg::IpgBuckets;
use self::optimizer::ShardedOptimizer;
use self::parameters::Parameters;
use self::stopwatch::Stopwatch;
use crate::model::ProbeModel;
use crate::recorder::Pieces;
use crate::sampler::Sampler;
use crate::shim::autograd::walk_graph;

/// What is in padding that nobody has set to zero.
const GARBAGE: f64 = 1e4;

/// Where gradients wait between backward and the optimizer.
trait GradientFlow {
    /// Name of this class, and of the one in DeepSpeed that it follows.
    fn class(&self) -> &'static str;

    /// Runs backward on a loss that is already divided by the accumulation steps and multiplied by
    /// the loss `scale`; at the boundary also reduces across ranks.
    fn backward(&mut self, loss: &Tensor, microbatch: Microbatch, scale: f64) -> Result<()>;

    /// This rank's partition of the reduced gradient, fp32, for the inner optimizer.
    fn partition_gradient(&self) -> Result<Tensor>;

    /// Forgets the step's gradients.
    fn zero_grad(&mut self) -> Result<()>;
}

/// The engine of one rank.
pub struct Engine {
    context: Rc<Context>,
    model: Box<dyn ProbeModel>,
    parameters: Parameters,
    flow: Box<dyn GradientFlow>,
    optimizer: ShardedOptimizer,
    backwards: usize,
}

impl Engine {
    /// Partitions the model's parameters and attaches hooks.
    pub fn new(context: Rc<Context>, model: Box<dyn ProbeModel>) -> Result<Self> {
        let params = model.parameters();
        // Hooks first: they belong to the parameters, whatever these hold.
        let flow: Box<dyn GradientFlow> = match context.spec.dataflow() {
            Some(Dataflow::Accumulator) => Box::new(Accumulator::new(Rc::clone(&context), params)?),
            Some(Dataflow::IpgBucket) => Box::new(IpgBuckets::new(Rc::clone(&context), params)?),
            None => bail!("the spec names no dataflow: it is not one of the native engine"),
        };
        let parameters = Parameters::new(Rc::clone(&context), params)?;
        let optimizer = ShardedOptimizer::new(Rc::clone(&context), &parameters)?;
        Ok(Self { context, model, parameters, flow, optimizer, backwards: 0 })
    }

    /// Runs all steps.
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
                    watch.pause(|| self.model.prepare(step, index, part))?;
                    self.backward(Microbatch { step, index, complete, boundary })?;
                }
            }
            let index = accumulation_steps - 1;
            self.step(Microbatch { step, index, complete: true, boundary: true }, &watch)?;
        }
        Ok(())
    }

    fn describe(&self) -> Result<()> {
        let Context { plan, partitioning, recorder, spec, .. } = &*self.context;
        let params = plan
            .params()
            .iter()
            .map(|param| ParamInfo {
                name: param.name.clone(),
                shape: param.shape.clone(),
                trainable: param.trainable,
            })
            .collect();
        recorder.emit(Event::Model { params })?;
        for (layout, segments) in [
            (LayoutName::Full, plan.segments()),
            (LayoutName::Partition, partitioning.layout(self.context.owner())),
        ] {
            recorder.emit(Event::Layout { layout, segments, sampled: false })?;
        }
        recorder.settle(spec, Sampler::of(spec, plan, partitioning, self.context.owner()))?;
        recorder.emit(Event::OptimizerChosen {
            class: self.flow.class().to_owned(),
            inner: spec.optimizer.name().to_owned(),
        })
    }

    /// Forward and backward of one loss of a microbatch.
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
        let divisions = match context.spec.inject() {
            Some(Fault::GaNotScaled) => 0,
            Some(Fault::GaScaledTwice) => 2,
            _ => 1,
        };
        let accumulation_steps = context.spec.gradient_accumulation_steps as f64;
        let mean = (0..divisions).fold(loss, |loss, _| loss / accumulation_steps);
        let scale = self.optimizer.scale();
        let scaled = mean * scale;
        let graph = walk_graph(&scaled, self.model.parameters())?;
        context.recorder.emit(Event::GraphWalked {
            step,
            microbatch: index,
            accumulate_grad_nodes: graph.accumulate_grad_nodes,
            params: graph.params,
        })?;
        if !self.model.is_coded() && context.recorder.wants(Point::LocalGradient) {
            self.record_local_gradient(&scaled, microbatch, scale)?;
        }
        if self.backwards == 1 {
            misbehave(&context)?;
        }
        self.backwards += 1;
        context.phase(microbatch, Phase::Backward)?;
        self.flow.backward(&scaled, microbatch, scale)?;
        self.parameters.release()
    }

    /// Asks autograd for the microbatch's gradient by itself, past every hook and buffer. With the
    /// loss scale, like the engine: without it, small gradients are lost to fp16.
    fn record_local_gradient(
        &self,
        loss: &Tensor,
        microbatch: Microbatch,
        scale: f64,
    ) -> Result<()> {
        let params = self.model.parameters();
        let gradients = Tensor::f_run_backward(&[loss], params, true, false)?;
        let tensors: Vec<Tensor> = gradients.iter().map(|g| g.reshape([-1])).collect();
        let pieces = Pieces { tensors, kind: params[0].kind(), scale: 1.0 }.unscaled(scale);
        let at = microbatch.at(Point::LocalGradient, LayoutName::Full);
        self.context.recorder.buffer(at, &pieces)
    }

    fn step(&mut self, boundary: Microbatch, watch: &Stopwatch) -> Result<()> {
        let gradient = self.displaced(self.flow.partition_gradient()?)?;
        self.optimizer.step(gradient, &mut self.parameters, boundary)?;
        if !self.context.has(Fault::AccumulatorNotZeroed) {
            self.flow.zero_grad()?;
        }
        let (step, engine_ns) = (boundary.step, watch.elapsed_ns());
        self.record(Some(step))?;
        let total_ns = watch.elapsed_ns();
        self.context.recorder.emit(Event::StepTimed { step, engine_ns, total_ns })?;
        self.exchange_digests(boundary)
    }

    /// Faults of where in its partition a gradient lies.
    fn displaced(&self, gradient: Tensor) -> Result<Tensor> {
        match self.context.spec.inject() {
            Some(Fault::SlicesSwapped) => {
                let half = gradient.size1()? / 2;
                let swapped = [gradient.narrow(0, half, half), gradient.narrow(0, 0, half)];
                gradient.narrow(0, 0, 2 * half).copy_(&Tensor::f_cat(&swapped, 0)?);
            }
            Some(Fault::PartitionOffset) => return Ok(gradient.f_roll([-1], [0])?),
            Some(Fault::PaddingNotZeroed) => {
                let mut start = 0;
                for segment in self.context.partitioning.layout(self.context.owner()) {
                    let range = start..start + segment.len;
                    start = range.end;
                    if segment.param.is_none() {
                        let _ = narrow(&gradient, range)?.f_fill_(GARBAGE)?;
                    }
                }
            }
            _ => {}
        }
        Ok(gradient)
    }

    /// Records master weights and parameters.
    fn record(&mut self, step: Option<usize>) -> Result<()> {
        self.optimizer.record(step)?;
        self.parameters.record(step)
    }

    /// All-gathers the digests of everything recorded since the last exchange, over the engine's
    /// own process group.
    fn exchange_digests(&self, boundary: Microbatch) -> Result<()> {
        let context = &self.context;
        context.phase(boundary, Phase::Digests)?;
        let digests = context.recorder.take_digests();
        let combined = combined_digest(digests.iter().map(String::as_str));
        let mut own = u64::from_str_radix(&combined, 16)?;
        if context.has_here(Fault::DigestCorrupted) {
            own ^= 1;
        }
        let gathered = context.zeros(context.communicator.world_size(), Kind::Int64)?;
        let own = Tensor::f_from_slice(&[own.cast_signed()])?.to_device(context.device);
        context.communicator.all_gather(&gathered, &own, "digests")?;
        let gathered: Vec<i64> = gathered.try_into()?;
        let digests =
            gathered.iter().map(|digest| format!("{:016x}", digest.cast_unsigned())).collect();
        context.recorder.emit(Event::DigestsGathered { step: boundary.step, digests })
    }
}

/// Faults of the process rather than of the gradients.
fn misbehave(context: &Context) -> Result<()> {
    if context.has_here(Fault::RankDies) {
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL)?;
    }
    while context.has_here(Fault::RankHangs) {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
    if context.has_here(Fault::RankRubbish) {
        context.recorder.write_raw(b"Segmentation fault? no, a print() on the event channel\n")?;
    }
    Ok(())
}

/// Flat pieces, one for each parameter, in the model's order.
fn in_model_order(
    context: &Context,
    kind: Kind,
    piece: impl Fn(usize) -> Result<Tensor>,
) -> Result<Pieces> {
    let tensors = (0..context.plan.params().len()).map(piece).collect::<Result<_>>()?;
    Ok(Pieces { tensors, kind, scale: 1.0 })
}
