//! What every part of the engine needs to know.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::Result;
use tch::{Device, Kind, Tensor};
use zprobe::spec::partitioning::Partitioning;
use zprobe::spec::{Dtype, Fault, Plan, RunSpec};
use zprobe::trace::{Event, LayoutName, Phase, Point};

use super::flat::narrow;
use crate::collective::Communicator;
use crate::recorder::{At, Recorder, kind_of};

/// The run, and this rank's connections.
pub struct Context {
    /// What is run.
    pub spec: RunSpec,
    /// The parameters, and which gradients should reach them.
    pub plan: Plan,
    /// Who owns what.
    pub partitioning: Partitioning,
    /// Where this rank computes.
    pub device: Device,
    /// The process group.
    pub communicator: Communicator,
    /// The trace.
    pub recorder: Rc<Recorder>,
    /// Gradients of the first microbatch of the step before, by parameter.
    earlier: RefCell<BTreeMap<usize, Tensor>>,
}

/// A microbatch's place in the run.
#[derive(Clone, Copy)]
pub struct Microbatch {
    /// Optimizer step.
    pub step: usize,
    /// Number within the step.
    pub index: usize,
    /// Whether no other backward of this microbatch follows.
    pub complete: bool,
    /// Whether this is the step's last backward: the gradient accumulation boundary.
    pub boundary: bool,
}

impl Microbatch {
    /// A place inside the accumulation.
    pub fn at(self, point: Point, layout: LayoutName) -> At {
        At { step: Some(self.step), microbatch: Some(self.index), point, layout }
    }
}

impl Context {
    /// The context of a rank.
    pub fn new(
        spec: RunSpec,
        device: Device,
        communicator: Communicator,
        recorder: Rc<Recorder>,
    ) -> Self {
        let plan = Plan::new(&spec);
        let partitioning = Partitioning::new(&spec, &plan);
        let earlier = RefCell::default();
        Self { spec, plan, partitioning, device, communicator, recorder, earlier }
    }

    /// The rank whose partition this one takes: its own.
    pub fn owner(&self) -> usize {
        if self.has_here(Fault::PartitionOwnedTwice) { 0 } else { self.rank() }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// Whether `fault` is injected.
    pub fn has(&self, fault: Fault) -> bool {
        self.spec.inject() == Some(fault)
    }

    /// Whether `fault` is injected and this is the rank that has it, the last one.
    pub fn has_here(&self, fault: Fault) -> bool {
        self.has(fault) && self.rank() + 1 == self.communicator.world_size()
    }

    /// Says that a phase begins.
    pub fn phase(&self, microbatch: Microbatch, phase: Phase) -> Result<()> {
        let Microbatch { step, index, .. } = microbatch;
        self.recorder.emit(Event::PhaseEntered { step, microbatch: index, phase })
    }

    /// Faults of a microbatch's flat gradient on its way into the accumulation.
    pub fn disturb(&self, param: usize, gradient: &Tensor, microbatch: Microbatch) -> Result<()> {
        if microbatch.index > 0 {
            return Ok(());
        }
        let mut gradient = gradient.shallow_clone();
        match self.spec.inject() {
            Some(Fault::MicrobatchDropped) => drop(gradient.f_zero_()?),
            Some(Fault::MicrobatchDoubled) => drop(gradient.f_mul_scalar_(2.0)?),
            Some(Fault::MicrobatchFromPreviousStep) => {
                let earlier = self.earlier.borrow_mut().insert(param, gradient.copy());
                if let Some(earlier) = earlier {
                    gradient.f_copy_(&earlier)?;
                }
            }
            Some(Fault::InfinityOnOneRank)
                if self.has_here(Fault::InfinityOnOneRank) && microbatch.step == 0 =>
            {
                drop(narrow(&gradient, 0..1)?.f_fill_(f64::INFINITY)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Dtype in which microbatches are added up.
    pub fn accumulation_dtype(&self) -> Dtype {
        if self.has(Fault::AccumulatedInBf16) { Dtype::Bf16 } else { self.spec.grad_accum_dtype }
    }

    /// Dtype in which gradients cross ranks.
    pub fn wire_dtype(&self) -> Dtype {
        if self.has(Fault::ReducedInBf16) { Dtype::Bf16 } else { self.spec.narrowest_comm_dtype() }
    }

    /// What a gradient is divided by on this rank to become an average.
    pub fn divisor(&self) -> f64 {
        if self.has(Fault::SummedNotAveraged) || self.has_here(Fault::RankNotDivided) {
            return 1.0;
        }
        self.communicator.world_size() as f64
    }

    /// A flat buffer of zeros for all gradients.
    pub fn flat_zeros(&self, dtype: Dtype) -> Result<Tensor> {
        self.zeros(self.partitioning.numel(), kind_of(dtype))
    }

    /// A buffer in which averaged gradients are added up.
    pub fn gradient_buffer(&self, numel: usize) -> Result<Tensor> {
        let kind = kind_of(self.accumulation_dtype());
        if self.has(Fault::BufferNotSet) {
            return Ok(Tensor::f_empty([i64::try_from(numel)?], (kind, self.device))?);
        }
        self.zeros(numel, kind)
    }

    /// Zeros on this rank's device.
    pub fn zeros(&self, numel: usize, kind: Kind) -> Result<Tensor> {
        Ok(Tensor::f_zeros([i64::try_from(numel)?], (kind, self.device))?)
    }
}
