//! Averages gradients over the ranks; each rank keeps the slices that it owns.
//!
//! The module follows DeepSpeed's `average_tensor`, `gradient_reduction_w_predivide` and `allreduce_and_scatter`
//! (`runtime/zero/stage_1_and_2.py`), and `__avg_scatter_grads` and `__avg_scatter_contiguous_grads`
//! (`runtime/zero/stage3.py`).

use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;

use super::bucket::BucketContents;
use super::context::Context;
use super::flat::narrow;
use super::partitioning::ParameterSlice;
use crate::collective::{Collective, PendingCollective};

/// The reduction of buckets, one after the other.
pub trait BucketReduction {
    /// Averages the gradients of a bucket over the ranks; may return before the reduction is complete.
    fn average(&mut self, contents: BucketContents) -> Result<()>;

    /// Waits until all buckets are averaged.
    fn finish(&mut self) -> Result<()>;

    /// This rank's partition of the gradients that have been averaged so far.
    fn averaged(&self) -> &Tensor;

    /// Sets the averaged gradients of the step to zero.
    fn zero(&mut self) -> Result<()>;
}

/// The reduction of the engine without faults, which averages buckets into this rank's partition.
pub struct Reducer {
    context: Rc<Context>,
    collective: ReductionCollective,
    /// True if reductions overlap with the backward pass (`overlap_comm`).
    overlaps: bool,
    /// This rank's partition of the averaged gradient, summed over the reductions of the step.
    averaged: Tensor,
    /// The reduction in progress, if there is one.
    launched: Option<RunningReduction>,
}

/// The collective that reduces gradients to their owners.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReductionCollective {
    /// An all-reduce: each rank gets the whole bucket.
    AllReduce,
    /// A separate reduction for each owner, because the parts of the owners differ in size.
    ReduceToOwners,
    /// A single reduce-scatter, because every rank owns an equal part of every parameter.
    ReduceScatter,
}

/// A reduction in progress.
struct RunningReduction {
    /// The collectives that the reduction consists of.
    pending: Vec<PendingCollective>,
    /// The slices that this rank will own when the collectives are complete.
    arrivals: Vec<ReducedSlice>,
}

/// A reduced slice for this rank, and its place in the partition.
struct ReducedSlice {
    /// The result of the collective, which contains the slice.
    tensor: Tensor,
    /// The range of the slice in `tensor`.
    from: Range<usize>,
    /// The range of the slice in this rank's partition.
    to: Range<usize>,
}

/// A gradient slice and its place in a bucket.
struct PlacedSlice {
    /// The index of the slice's parameter among the parameters of the bucket.
    position: usize,
    wire: Range<usize>,
    slice: ParameterSlice,
}

impl Reducer {
    /// Creates a reducer whose averages are zero.
    pub fn new(context: Rc<Context>) -> Result<Self> {
        let spec = &context.spec;
        let collective = match (spec.stage, spec.reduce_scatter() == Some(true)) {
            (0, _) | (_, false) => ReductionCollective::AllReduce,
            (3, true) => ReductionCollective::ReduceScatter,
            (_, true) => ReductionCollective::ReduceToOwners,
        };
        let overlaps = spec.overlap_comm() == Some(true);
        let averaged = context.gradient_buffer(context.partitioning.partition_numel())?;
        Ok(Self { context, collective, overlaps, averaged, launched: None })
    }

    /// Starts the reduction of a bucket.
    fn launch(
        &self,
        BucketContents { mut wire, params }: BucketContents,
    ) -> Result<RunningReduction> {
        if !self.context.spec.divides_last() {
            let _ = wire.f_div_scalar_(self.context.settings.average_divisor)?;
        }
        match self.collective {
            ReductionCollective::AllReduce => self.all_reduce(&wire, &params),
            ReductionCollective::ReduceToOwners => self.reduce_to_owners(&wire, &params),
            ReductionCollective::ReduceScatter => self.reduce_scatter(&wire, &params),
        }
    }

    /// Starts an all-reduce of a bucket, after which each rank keeps the slices that it owns.
    fn all_reduce(&self, wire: &Tensor, params: &[usize]) -> Result<RunningReduction> {
        let pending =
            self.context.groups.gradients.start(Collective::AllReduce(wire), &purpose(params))?;
        let placed = self.placed(params).into_iter();
        let arrivals =
            placed.filter(|it| self.is_own(it)).map(|PlacedSlice { wire: from, slice, .. }| {
                ReducedSlice { tensor: wire.shallow_clone(), from, to: slice.partition }
            });
        Ok(RunningReduction { pending: vec![pending], arrivals: arrivals.collect() })
    }

    /// Starts a separate reduction for each owner, because ranks own parts of different sizes, or no part at all.
    fn reduce_to_owners(&self, wire: &Tensor, params: &[usize]) -> Result<RunningReduction> {
        let placed = self.placed(params);
        let mut launched = RunningReduction { pending: Vec::new(), arrivals: Vec::new() };
        for owner in 0..self.context.spec.world_size {
            let owned: Vec<&PlacedSlice> =
                placed.iter().filter(|p| p.slice.rank == owner).collect();
            if owned.is_empty() {
                continue;
            }
            let pieces = owned
                .iter()
                .map(|piece| narrow(wire, piece.wire.clone()))
                .collect::<Result<Vec<_>>>()?;
            let part = Tensor::f_cat(&pieces, 0)?;
            if owner == self.context.settings.owner {
                let mut start = 0;
                for piece in owned {
                    let from = start..start + piece.wire.len();
                    start = from.end;
                    let (tensor, to) = (part.shallow_clone(), piece.slice.partition.clone());
                    launched.arrivals.push(ReducedSlice { tensor, from, to });
                }
            }
            let purpose = format!("{} for rank {owner}", purpose(params));
            let sum = Collective::Reduce { tensor: &part, root: owner };
            launched.pending.push(self.context.groups.gradients.start(sum, &purpose)?);
        }
        Ok(launched)
    }

    /// Starts a reduce-scatter of a bucket whose parameters are cut into equal parts.
    fn reduce_scatter(&self, wire: &Tensor, params: &[usize]) -> Result<RunningReduction> {
        let Context { spec, partitioning, groups, .. } = &*self.context;
        let parts: Vec<Range<usize>> =
            params.iter().filter_map(|&param| partitioning.part(param)).collect();
        let total: usize = parts.iter().map(Range::len).sum();
        let zeros = |numel: usize| self.context.zeros(numel, wire.kind());
        let (input, output) = (zeros(total * spec.world_size)?, zeros(total)?);
        for PlacedSlice { position, wire: from, slice } in self.placed(params) {
            // The number of elements before this parameter in each rank's part of the bucket.
            let before: usize = parts[..position].iter().map(Range::len).sum();
            let to = slice.rank * total + before;
            narrow(&input, to..to + from.len())?.f_copy_(&narrow(wire, from)?)?;
        }
        let mut start = 0;
        let mut arrivals = Vec::new();
        for to in parts {
            let from = start..start + to.len();
            start = from.end;
            arrivals.push(ReducedSlice { tensor: output.shallow_clone(), from, to });
        }
        let sum = Collective::ReduceScatter { output: &output, input: &input };
        let pending = groups.gradients.start(sum, &purpose(params))?;
        Ok(RunningReduction { pending: vec![pending], arrivals })
    }

    fn is_own(&self, placed: &PlacedSlice) -> bool {
        placed.slice.rank == self.context.settings.owner
    }

    /// The slices of all parameters in a bucket, with their places in the bucket.
    fn placed(&self, params: &[usize]) -> Vec<PlacedSlice> {
        let mut start = 0;
        let mut placed = Vec::new();
        for (position, &index) in params.iter().enumerate() {
            for slice in self.context.partitioning.slices(index) {
                let wire = start + slice.param.start..start + slice.param.end;
                placed.push(PlacedSlice { position, wire, slice });
            }
            start += self.context.plan.params()[index].numel();
        }
        placed
    }
}

impl BucketReduction for Reducer {
    fn average(&mut self, contents: BucketContents) -> Result<()> {
        // The previous reduction must be complete, because its buffer is filled next.
        self.finish()?;
        if contents.wire.numel() == 0 {
            return Ok(());
        }
        self.launched = Some(self.launch(contents)?);
        if self.overlaps { Ok(()) } else { self.finish() }
    }

    fn finish(&mut self) -> Result<()> {
        let Some(RunningReduction { pending, arrivals }) = self.launched.take() else {
            return Ok(());
        };
        pending.into_iter().try_for_each(PendingCollective::wait)?;
        for ReducedSlice { tensor, from, to } in arrivals {
            let mut arrived = narrow(&tensor, from)?;
            if self.context.spec.divides_last() {
                // The division happens in the communication dtype.
                arrived = arrived.f_mul_scalar(1.0 / self.context.settings.average_divisor)?;
            }
            let _ = narrow(&self.averaged, to)?.f_add_(&arrived)?;
        }
        Ok(())
    }

    fn averaged(&self) -> &Tensor {
        &self.averaged
    }

    fn zero(&mut self) -> Result<()> {
        let _ = self.averaged.f_zero_()?;
        Ok(())
    }
}

fn purpose(params: &[usize]) -> String {
    format!("bucket with parameters {params:?}")
}
