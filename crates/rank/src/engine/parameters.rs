//! The model's parameters on one rank, in the model's dtype.
//!
//! Up to stage 2 they are views of one flat buffer that every rank has whole; after a step all
//! ranks gather what the owners updated (`all_gather_dp_groups`, `runtime/utils.py`). In stage 3 a
//! rank keeps only its partition, and the whole is gathered for forward and backward only
//! (`runtime/zero/partitioned_param_coordinator.py`; here the model is one module).

use std::rc::Rc;

use anyhow::Result;
use tch::{Tensor, no_grad};
use zprobe_model::trace::{LayoutName, Point};

use super::context::Context;
use super::flat::{narrow, partition_of};
use crate::collective::Collective;
use crate::dtype::kind_of;
use crate::recorder::At;

/// The model's parameters, as the engine handles them.
pub trait Weights {
    /// Makes the model ready for use, gathering its parameters where they are partitioned.
    fn gather(&mut self) -> Result<()>;

    /// Releases gathered parameters that this rank does not own.
    fn release(&mut self) -> Result<()>;

    /// Takes over this rank's updated master weights, and the updates of the other ranks.
    fn update(&mut self, master: &Tensor) -> Result<()>;

    /// Records every parameter as the next forward will see it.
    fn record(&mut self, step: Option<usize>) -> Result<()>;
}

/// Parameters of one rank.
pub struct Parameters {
    context: Rc<Context>,
    /// The parameters as the model holds them.
    tensors: Vec<Tensor>,
    /// The buffer of which the trainable parameters are views; none while they are released.
    flat: Option<Tensor>,
    /// This rank's partition.
    own: Tensor,
    shapes: Vec<Vec<i64>>,
}

impl Parameters {
    /// Moves the trainable parameters into one flat buffer.
    pub fn new(context: Rc<Context>, params: &[Tensor]) -> Result<Self> {
        let flat = context.zeros(context.partitioning.numel(), kind_of(context.spec.dtype))?;
        for (index, param) in params.iter().enumerate() {
            if let Some(place) = context.partitioning.place(index) {
                narrow(&flat, place)?.f_copy_(&param.detach().reshape([-1]))?;
            }
        }
        let own = partition_of(&context.partitioning, &flat, context.settings.owner)?;
        let tensors = params.iter().map(Tensor::shallow_clone).collect();
        let shapes = params.iter().map(Tensor::size).collect();
        let mut this = Self { context, tensors, flat: None, own, shapes };
        this.point_at(flat)?;
        if this.is_partitioned() {
            this.release()?;
        }
        Ok(this)
    }

    /// True if a rank keeps nothing but its partition between steps.
    fn is_partitioned(&self) -> bool {
        self.context.spec.stage == 3
    }

    /// This rank's partition.
    pub fn own(&self) -> &Tensor {
        &self.own
    }

    fn point_at(&mut self, flat: Tensor) -> Result<()> {
        for (index, tensor) in self.tensors.iter().enumerate() {
            if let Some(place) = self.context.partitioning.place(index) {
                let view = narrow(&flat, place)?.f_view(self.shapes[index].as_slice())?;
                no_grad(|| tensor.shallow_clone().set_data(&view));
            }
        }
        self.flat = Some(flat);
        Ok(())
    }

    /// Gathers the partitions of all ranks in a new flat buffer.
    fn all_gather(&self) -> Result<Tensor> {
        let Context { spec, partitioning, groups, .. } = &*self.context;
        if partitioning.is_replicated() {
            return Ok(self.own.copy());
        }
        let flat = self.context.zeros(partitioning.numel(), kind_of(spec.dtype))?;
        let world_size = spec.world_size;
        let whole = partitioning.partition_numel();
        let most = spec.allgather_bucket_size().unwrap_or(whole * world_size) / world_size;
        let mut start = 0;
        while start < whole {
            let part = start..(start + most.max(1)).min(whole);
            let input = narrow(&self.own, part.clone())?.copy();
            let output = self.context.zeros(part.len() * world_size, flat.kind())?;
            let gather = Collective::AllGather { output: &output, input: &input };
            groups.parameters.run(gather, "parameters")?;
            for rank in 0..world_size {
                for run in partitioning.runs(rank, part.clone()) {
                    let first = rank * part.len() + run.partition.start - part.start;
                    let piece = narrow(&output, first..first + run.partition.len())?;
                    narrow(&flat, run.flat)?.f_copy_(&piece)?;
                }
            }
            start = part.end;
        }
        Ok(flat)
    }
}

impl Weights for Parameters {
    fn gather(&mut self) -> Result<()> {
        if self.flat.is_none() {
            let flat = self.all_gather()?;
            self.point_at(flat)?;
        }
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        if !self.is_partitioned() {
            return Ok(());
        }
        self.flat = None;
        let nothing = self.context.zeros(0, kind_of(self.context.spec.dtype))?;
        for (index, tensor) in self.tensors.iter().enumerate() {
            if self.context.partitioning.place(index).is_some() {
                no_grad(|| tensor.shallow_clone().set_data(&nothing));
            }
        }
        Ok(())
    }

    fn update(&mut self, master: &Tensor) -> Result<()> {
        self.own.f_copy_(master)?;
        if self.is_partitioned() {
            return Ok(());
        }
        let gathered = self.all_gather()?;
        if let Some(flat) = &mut self.flat {
            flat.f_copy_(&gathered)?;
        }
        Ok(())
    }

    fn record(&mut self, step: Option<usize>) -> Result<()> {
        self.gather()?;
        let whole = self.context.in_model_order(kind_of(self.context.spec.dtype), |param| {
            Ok(self.tensors[param].detach().reshape([-1]))
        })?;
        let (point, layout) = (Point::Parameters, LayoutName::Full);
        self.context.recorder.buffer(At { step, microbatch: None, point, layout }, &whole)?;
        self.release()
    }
}
