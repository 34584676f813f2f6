//! Partitioned optimizer states: each rank updates its own slice of the fp32 master weights, then
//! all ranks gather the updated parameters (ZeRO stage 1, arXiv 1910.02054, section 5.1).

use std::rc::Rc;

use anyhow::Result;
use tch::{Kind, Tensor, no_grad};
use zprobe::spec::Fault;
use zprobe::trace::{LayoutName, Phase, Point};

use super::inner::Inner;
use super::{Context, Microbatch, narrow, pad};
use crate::recorder::At;

/// Master weights, inner optimizer and the model's flat parameters on one rank.
pub struct PartitionedOptimizer {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// All parameters in flat order, padded, in the model's dtype. The parameters are views of it.
    flat: Tensor,
    /// This rank's partition in fp32.
    master: Tensor,
    inner: Inner,
}

impl PartitionedOptimizer {
    /// Moves the parameters into one flat buffer and copies this rank's partition to fp32.
    pub fn new(context: Rc<Context>, params: &[Tensor]) -> Result<Self> {
        let pieces: Vec<Tensor> = params.iter().map(|p| p.detach().reshape([-1])).collect();
        let flat = pad(&Tensor::f_cat(&pieces, 0)?, context.plan.padded())?;
        let params: Vec<Tensor> = params.iter().map(Tensor::shallow_clone).collect();
        for (param, place) in params.iter().zip(context.plan.params()) {
            let view = narrow(&flat, place.range())?.view_as(param);
            no_grad(|| param.shallow_clone().set_data(&view));
        }
        let master = context.own(&flat)?.to_kind(Kind::Float).copy();
        let inner = Inner::new(context.spec.optimizer, &master);
        Ok(Self { context, params, flat, master, inner })
    }

    /// Records master weights and parameters as they are before the first step.
    pub fn record_initial(&self) -> Result<()> {
        self.record(None)
    }

    /// Updates this rank's partition with its `gradient` (fp32) and gathers everybody's.
    pub fn step(&mut self, gradient: &Tensor, boundary: Microbatch) -> Result<()> {
        let context = Rc::clone(&self.context);
        context.phase(boundary, Phase::OptimizerStep)?;
        if !context.has_here(Fault::StepSkipped) {
            let at = At {
                microbatch: None,
                ..boundary.at(Point::OptimizerInput, LayoutName::Partition)
            };
            context.recorder.buffer(at, gradient)?;
            self.inner.step(&mut self.master, gradient)?;
        }
        context.phase(boundary, Phase::AllGather)?;
        let mut own = context.own(&self.flat)?.copy();
        if !context.has_here(Fault::StaleAllGather) {
            own.f_copy_(&self.master)?;
        }
        let gathered = self.flat.zeros_like();
        context.communicator.all_gather(&gathered, &own, "updated parameters")?;
        if !context.has_here(Fault::UpdateNotCopied) {
            self.flat.f_copy_(&gathered)?;
        }
        self.record(Some(boundary.step))
    }

    fn record(&self, step: Option<usize>) -> Result<()> {
        let recorder = &self.context.recorder;
        let at = |point, layout| At { step, microbatch: None, point, layout };
        recorder.buffer(at(Point::MasterWeights, LayoutName::Partition), &self.master)?;
        // Read through the parameters themselves: what the next forward will see.
        let pieces: Vec<Tensor> = self.params.iter().map(|p| p.detach().reshape([-1])).collect();
        let flat = pad(&Tensor::f_cat(&pieces, 0)?, self.context.plan.padded())?;
        recorder.buffer(at(Point::Parameters, LayoutName::Full), &flat)
    }
}
