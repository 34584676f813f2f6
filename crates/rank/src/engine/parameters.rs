//! The model's parameters on one rank, in the model's dtype.
//!
//! Up to stage 2, the parameters are views of one flat buffer with all parameters on every rank; after a step, all
//! ranks gather the updates of the owners (`all_gather_dp_groups`, `runtime/utils.py`). In stage 3, a rank keeps only
//! its partition, and gathers all parameters only for forward and backward
//! (`runtime/zero/partitioned_param_coordinator.py`; here the whole model is one module).

use std::rc::Rc;

use anyhow::Result;
use tch::{Tensor, no_grad};
use zprobe_model::trace::{LayoutName, Point};

use super::context::Context;
use super::flat::{narrow, partition_of};
use crate::collective::Collective;
use crate::dtype::kind_of;
use crate::recorder::BufferPlace;

/// The engine's operations on the model's parameters.
pub trait ModelWeights {
    /// Gathers the parameters if they are partitioned, so that the model can be used.
    fn gather(&mut self) -> Result<()>;

    /// Releases gathered parameters that this rank does not own.
    fn release(&mut self) -> Result<()>;

    /// Copies this rank's updated master weights to the parameters, and up to stage 2 gathers the other ranks' updates.
    fn update(&mut self, master: &Tensor) -> Result<()>;

    /// Records every parameter with the value that the next forward pass will use.
    fn record(&mut self, step: Option<usize>) -> Result<()>;
}

/// The model's parameters on one rank.
pub struct Parameters {
    context: Rc<Context>,
    /// The parameters, which share their storage with the model.
    tensors: Vec<Tensor>,
    /// The flat buffer whose views are the trainable parameters; `None` while the parameters are released.
    flat: Option<Tensor>,
    /// This rank's partition of the parameters.
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

    /// True if a rank keeps only its partition between forward and backward passes (stage 3).
    fn is_partitioned(&self) -> bool {
        self.context.spec.stage == 3
    }

    /// This rank's partition of the parameters.
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

    /// Gathers the partitions of all ranks into a new flat buffer.
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
                for range in partitioning.runs(rank, part.clone()) {
                    let first = rank * part.len() + range.partition.start - part.start;
                    let piece = narrow(&output, first..first + range.partition.len())?;
                    narrow(&flat, range.flat)?.f_copy_(&piece)?;
                }
            }
            start = part.end;
        }
        Ok(flat)
    }
}

impl ModelWeights for Parameters {
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
        self.context
            .recorder
            .buffer(BufferPlace { step, microbatch: None, point, layout }, &whole)?;
        self.release()
    }
}
