//! The native engine: ZeRO stage 1 with gradient accumulation, as DeepSpeed does it.
//!
//! A step is `GA` times forward and backward, then the gradient accumulation boundary: reduction,
//! the inner optimizer's step on this rank's partition of the fp32 master weights, and an
//! all-gather of the updated parameters. Where gradients wait in between is the business of a
//! [`GradientFlow`]; faults (`--inject`) sit at the points of the dataflow that they disturb.

mod accumulator;
mod inner;
mod ipg;
mod partition;

use std::rc::Rc;

use anyhow::{Result, bail, ensure};
use tch::Tensor;
use zprobe::spec::{Dataflow, Fault, Plan, RunSpec};
use zprobe::trace::{Event, LayoutName, ParamInfo, Phase, Point, combined_digest};

use self::accumulator::Accumulator;
use self::ipg::IpgBuckets;
use self::partition::PartitionedOptimizer;
use crate::collective::Communicator;
use crate::model::ProbeModel;
use crate::recorder::{At, Recorder, kind_of};
use crate::shim::autograd::walk_graph;

/// What every part of the engine needs to know.
pub struct Context {
    /// What is run.
    pub spec: RunSpec,
    /// Where everything should go.
    pub plan: Plan,
    /// The process group.
    pub communicator: Communicator,
    /// The trace.
    pub recorder: Rc<Recorder>,
}

impl Context {
    /// Whether `fault` is injected.
    pub fn has(&self, fault: Fault) -> bool {
        self.spec.inject == Some(fault)
    }

    /// Whether `fault` is injected and this is the rank that has it, the last one.
    pub fn has_here(&self, fault: Fault) -> bool {
        self.has(fault) && self.communicator.rank() + 1 == self.communicator.world_size()
    }

    /// Makes the first element of a flat gradient infinite, where that fault is injected.
    fn poison(&self, gradient: &Tensor, microbatch: Microbatch) -> Result<()> {
        if self.has_here(Fault::InfinityOnOneRank) && microbatch.step == 0 && microbatch.index == 0
        {
            let _ = narrow(gradient, 0..1)?.f_fill_(f64::INFINITY)?;
        }
        Ok(())
    }

    fn phase(&self, microbatch: Microbatch, phase: Phase) -> Result<()> {
        let Microbatch { step, index, .. } = microbatch;
        self.recorder.emit(Event::PhaseEntered { step, microbatch: index, phase })
    }

    /// This rank's partition of a flat tensor, as a view.
    fn own(&self, flat: &Tensor) -> Result<Tensor> {
        let range = self.plan.partition(self.communicator.rank());
        narrow(flat, range)
    }
}

/// A microbatch's place in the run.
#[derive(Clone, Copy)]
pub struct Microbatch {
    /// Optimizer step.
    pub step: usize,
    /// Number within the step.
    pub index: usize,
    /// Whether this is the step's last microbatch: the gradient accumulation boundary.
    pub boundary: bool,
}

impl Microbatch {
    fn at(self, point: Point, layout: LayoutName) -> At {
        At { step: Some(self.step), microbatch: Some(self.index), point, layout }
    }
}

/// Where gradients wait between backward and the optimizer.
trait GradientFlow {
    /// Name of this class, and of the one in DeepSpeed that it follows.
    fn class(&self) -> &'static str;

    /// Runs backward on a loss that is already divided by the accumulation steps; at the boundary
    /// also reduces across ranks.
    fn backward(&mut self, loss: &Tensor, microbatch: Microbatch) -> Result<()>;

    /// This rank's partition of the reduced gradient, for the inner optimizer.
    fn partition_gradient(&self) -> Result<Tensor>;

    /// Forgets the step's gradients.
    fn zero_grad(&mut self) -> Result<()>;
}

/// The engine of one rank.
pub struct Engine {
    context: Rc<Context>,
    model: Box<dyn ProbeModel>,
    flow: Box<dyn GradientFlow>,
    optimizer: PartitionedOptimizer,
    backwards: usize,
}

impl Engine {
    /// Partitions the model's parameters and attaches hooks.
    pub fn new(context: Rc<Context>, model: Box<dyn ProbeModel>) -> Result<Self> {
        let params = model.parameters();
        // First, because it moves the parameters' storage into one flat buffer.
        let optimizer = PartitionedOptimizer::new(Rc::clone(&context), params)?;
        let flow: Box<dyn GradientFlow> = match context.spec.dataflow {
            Some(Dataflow::Accumulator) => Box::new(Accumulator::new(Rc::clone(&context), params)?),
            Some(Dataflow::IpgBucket) => Box::new(IpgBuckets::new(Rc::clone(&context), params)?),
            None => bail!("the spec names no dataflow: it is not one of the native engine"),
        };
        Ok(Self { context, model, flow, optimizer, backwards: 0 })
    }

    /// Runs all steps.
    pub fn run(&mut self) -> Result<()> {
        self.describe()?;
        self.optimizer.record_initial()?;
        let accumulation_steps = self.context.spec.gradient_accumulation_steps;
        for step in 0..self.context.spec.steps {
            for index in 0..accumulation_steps {
                let boundary = index + 1 == accumulation_steps;
                self.microbatch(Microbatch { step, index, boundary })?;
            }
            self.step(Microbatch { step, index: accumulation_steps - 1, boundary: true })?;
        }
        Ok(())
    }

    fn describe(&self) -> Result<()> {
        let Context { plan, communicator, recorder, spec } = &*self.context;
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
        for (layout, range) in [
            (LayoutName::Full, 0..plan.padded()),
            (LayoutName::Partition, plan.partition(communicator.rank())),
        ] {
            recorder.emit(Event::Layout {
                layout,
                segments: plan.segments(range),
                sampled: false,
            })?;
        }
        recorder.emit(Event::OptimizerChosen {
            class: self.flow.class().to_owned(),
            inner: spec.optimizer.name().to_owned(),
        })
    }

    fn microbatch(&mut self, microbatch: Microbatch) -> Result<()> {
        let Microbatch { step, index, .. } = microbatch;
        let context = Rc::clone(&self.context);
        context.phase(microbatch, Phase::Forward)?;
        let loss = self.model.loss(step, index);
        let value = loss.double_value(&[]);
        context.recorder.emit(Event::Loss {
            step,
            microbatch: index,
            value: value.is_finite().then_some(value),
        })?;
        let divisions = if context.has(Fault::GaScaledTwice) { 2 } else { 1 };
        let accumulation_steps = context.spec.gradient_accumulation_steps as f64;
        let scaled = (0..divisions).fold(loss, |loss, _| loss / accumulation_steps);
        let graph = walk_graph(&scaled, self.model.parameters())?;
        context.recorder.emit(Event::GraphWalked {
            step,
            microbatch: index,
            accumulate_grad_nodes: graph.accumulate_grad_nodes,
            params: graph.params,
        })?;
        if !self.model.is_coded() {
            self.record_local_gradient(&scaled, microbatch)?;
        }
        if self.backwards == 1 {
            misbehave(&context)?;
        }
        self.backwards += 1;
        context.phase(microbatch, Phase::Backward)?;
        self.flow.backward(&scaled, microbatch)
    }

    /// Asks autograd for the microbatch's gradient by itself, past every hook and buffer.
    fn record_local_gradient(&self, loss: &Tensor, microbatch: Microbatch) -> Result<()> {
        let params = self.model.parameters();
        let gradients = Tensor::f_run_backward(&[loss], params, true, false)?;
        let flat: Vec<Tensor> = gradients.iter().map(|g| g.reshape([-1])).collect();
        let flat = pad(&Tensor::f_cat(&flat, 0)?, self.context.plan.padded())?;
        let at = microbatch.at(Point::LocalGradient, LayoutName::Full);
        self.context.recorder.buffer(at, &flat)
    }

    fn step(&mut self, boundary: Microbatch) -> Result<()> {
        let gradient = self.flow.partition_gradient()?;
        if self.context.has(Fault::SlicesSwapped) {
            let half = gradient.size1()? / 2;
            let swapped = [gradient.narrow(0, half, half), gradient.narrow(0, 0, half)];
            gradient.narrow(0, 0, 2 * half).copy_(&Tensor::f_cat(&swapped, 0)?);
        }
        self.optimizer.step(&gradient, boundary)?;
        if !self.context.has(Fault::AccumulatorNotZeroed) {
            self.flow.zero_grad()?;
        }
        self.exchange_digests(boundary)
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
        let world_size = i64::try_from(context.communicator.world_size())?;
        let gathered = Tensor::f_zeros([world_size], (tch::Kind::Int64, tch::Device::Cpu))?;
        let own = Tensor::f_from_slice(&[own.cast_signed()])?;
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

fn narrow(flat: &Tensor, range: std::ops::Range<usize>) -> Result<Tensor> {
    Ok(flat.f_narrow(0, i64::try_from(range.start)?, i64::try_from(range.len())?)?)
}

/// `flat` with zeros up to `len` elements.
fn pad(flat: &Tensor, len: usize) -> Result<Tensor> {
    let missing = i64::try_from(len)? - flat.size1()?;
    ensure!(missing >= 0, "a buffer is longer than the plan says");
    Ok(flat.f_constant_pad_nd([0, missing])?)
}

/// A flat buffer of zeros as long as all padded parameters.
fn zeros(context: &Context, dtype: zprobe::spec::Dtype) -> Result<Tensor> {
    let len = i64::try_from(context.plan.padded())?;
    Ok(Tensor::f_zeros([len], (kind_of(dtype), tch::Device::Cpu))?)
}
