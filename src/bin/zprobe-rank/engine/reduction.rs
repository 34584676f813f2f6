//! Averaging gradients over the ranks: each rank keeps what it owns.
//!
//! DeepSpeed's `average_tensor`, `gradient_reduction_w_predivide` and `allreduce_and_scatter`
//! (`runtime/zero/stage_1_and_2.py`), and `__avg_scatter_grads` and `__avg_scatter_contiguous_grads`
//! (`runtime/zero/stage3.py`).

use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;
use zprobe::spec::Fault;
use zprobe::spec::partitioning::Slice;

use super::bucket::Contents;
use super::context::{Context, Microbatch};
use super::flat::narrow;
use crate::collective::Pending;

/// Averages buckets, one after the other, into this rank's partition.
pub struct Reducer {
    context: Rc<Context>,
    way: Way,
    /// Whether a reduction goes on while backward goes on (`overlap_comm`).
    overlaps: bool,
    /// This rank's partition of the averaged gradient, added up over the step's reductions.
    averaged: Tensor,
    /// The reduction that goes on.
    launched: Option<Launched>,
    launches: usize,
    /// Parameters of the last bucket.
    last: Vec<usize>,
    /// A bucket whose reduction comes too late, with that fault.
    late: Option<(Contents, Microbatch)>,
}

/// How gradients get to their owners.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Everything to everybody.
    AllReduce,
    /// To each owner what it owns, one reduction each: what ranks own differs in size.
    ReduceToOwners,
    /// To each owner what it owns: every rank owns as much of every parameter.
    ReduceScatter,
}

/// A reduction that was launched.
struct Launched {
    /// Its collectives.
    pending: Vec<Pending>,
    /// What this rank owns of it, once they are done.
    arrivals: Vec<Arrival>,
    /// What that is multiplied by then, in the dtype of the wire.
    factor: f64,
}

impl Launched {
    /// With nothing to wait for.
    fn at_once(arrivals: Vec<Arrival>) -> Self {
        Self { pending: Vec::new(), arrivals, factor: 1.0 }
    }
}

/// A slice that this rank owns.
struct Arrival {
    /// Where it will be.
    tensor: Tensor,
    /// Its place in there.
    from: Range<usize>,
    /// Its place in the partition.
    to: Range<usize>,
}

/// A slice of a gradient in a bucket.
struct Placed {
    /// Number of its parameter in the bucket.
    position: usize,
    wire: Range<usize>,
    slice: Slice,
}

impl Reducer {
    /// A reducer that nothing was given yet.
    pub fn new(context: Rc<Context>) -> Result<Self> {
        let spec = &context.spec;
        let way = match (spec.stage, spec.reduce_scatter() == Some(true)) {
            (0, _) | (_, false) => Way::AllReduce,
            (3, true) => Way::ReduceScatter,
            (_, true) => Way::ReduceToOwners,
        };
        let overlaps = spec.overlap_comm() == Some(true);
        let averaged = context.gradient_buffer(context.partitioning.partition_numel())?;
        let (last, late) = (Vec::new(), None);
        Ok(Self { context, way, overlaps, averaged, launched: None, launches: 0, last, late })
    }

    /// This rank's partition of what was averaged so far.
    pub fn averaged(&self) -> &Tensor {
        &self.averaged
    }

    /// Forgets the step's gradients.
    pub fn zero(&mut self) -> Result<()> {
        self.launches = 0;
        let _ = self.averaged.f_zero_()?;
        Ok(())
    }

    /// Averages the gradients of a bucket; with `overlap_comm`, returns before that is done.
    pub fn average(&mut self, contents: Contents, microbatch: Microbatch) -> Result<()> {
        if self.context.has(Fault::BufferOverwritten) {
            let late = self.late.replace((contents, microbatch));
            return late.map_or(Ok(()), |(contents, at)| self.launch(contents, at));
        }
        self.launch(contents, microbatch)
    }

    fn launch(&mut self, contents: Contents, microbatch: Microbatch) -> Result<()> {
        // Not before the last one is done: the buffer that is filled next is the one that it used.
        self.wait()?;
        let Contents { mut wire, mut params } = contents;
        if wire.numel() == 0 {
            return Ok(());
        }
        self.launches += 1;
        let context = Rc::clone(&self.context);
        if context.has(Fault::StaleParameterList) {
            let previous = std::mem::replace(&mut self.last, params.clone());
            if !previous.is_empty() {
                params = self.first_that_fit(previous, wire.numel());
            }
        }
        let skipped = context.has_here(Fault::CollectiveSkipped)
            && microbatch.step == 0
            && self.launches == 1;
        let first = context.has(Fault::BucketNotAveraged) && self.launches == 1;
        if context.has(Fault::NotAveraged) || first || skipped {
            self.launched = Some(Launched::at_once(self.own(&wire, &params)));
            return self.wait();
        }
        if !context.spec.divides_last() {
            let _ = wire.f_div_scalar_(context.divisor())?;
        }
        self.launched = Some(match self.way {
            Way::AllReduce => self.all_reduce(&wire, &params)?,
            Way::ReduceToOwners => self.reduce_to_owners(&wire, &params)?,
            Way::ReduceScatter => self.reduce_scatter(&wire, &params)?,
        });
        if self.overlaps { Ok(()) } else { self.wait() }
    }

    /// Waits for the reduction that goes on, if one does, and keeps what this rank owns of it.
    pub fn finish(&mut self) -> Result<()> {
        if let Some((contents, microbatch)) = self.late.take() {
            self.launch(contents, microbatch)?;
        }
        self.wait()
    }

    /// Waits for the reduction that was launched.
    fn wait(&mut self) -> Result<()> {
        let Some(Launched { pending, arrivals, factor }) = self.launched.take() else {
            return Ok(());
        };
        pending.into_iter().try_for_each(Pending::wait)?;
        for Arrival { tensor, from, to } in arrivals {
            let mut arrived = narrow(&tensor, from)?;
            if factor != 1.0 {
                arrived = arrived.f_mul_scalar(factor)?;
            }
            let _ = narrow(&self.averaged, to)?.f_add_(&arrived)?;
        }
        Ok(())
    }

    fn first_that_fit(&self, params: Vec<usize>, numel: usize) -> Vec<usize> {
        let mut end = 0;
        let fits = |param: &usize| {
            end += self.context.plan.params()[*param].numel();
            end <= numel
        };
        params.into_iter().take_while(fits).collect()
    }

    /// Where averaged gradients are read from: the tensor that is about to be reduced; or what it holds
    /// now, as somebody finds it who does not wait.
    fn read_from(&self, tensor: &Tensor) -> Tensor {
        if self.context.has(Fault::WaitMissing) { tensor.copy() } else { tensor.shallow_clone() }
    }

    /// Adds a gradient that was never averaged to what this rank owns of it.
    pub fn keep_local(&mut self, param: usize, gradient: &Tensor) -> Result<()> {
        self.finish()?;
        self.launched = Some(Launched::at_once(self.own(&gradient.reshape([-1]), &[param])));
        self.wait()
    }

    fn all_reduce(&self, wire: &Tensor, params: &[usize]) -> Result<Launched> {
        let arrivals = self.own(&self.read_from(wire), params);
        let Context { communicator, spec, .. } = &*self.context;
        let pending = communicator.start_all_reduce_sum(wire, &purpose(params))?;
        let factor = if spec.divides_last() { 1.0 / self.context.divisor() } else { 1.0 };
        Ok(Launched { pending: vec![pending], arrivals, factor })
    }

    /// What ranks own of a bucket differs in size, and may be nothing: one reduction for each owner.
    fn reduce_to_owners(&self, wire: &Tensor, params: &[usize]) -> Result<Launched> {
        let communicator = &self.context.communicator;
        let placed = self.placed(params);
        let mut launched = Launched::at_once(Vec::new());
        for owner in 0..communicator.world_size() {
            let owned: Vec<&Placed> = placed.iter().filter(|p| p.slice.rank == owner).collect();
            if owned.is_empty() {
                continue;
            }
            let pieces = owned
                .iter()
                .map(|piece| narrow(wire, piece.wire.clone()))
                .collect::<Result<Vec<_>>>()?;
            let part = Tensor::f_cat(&pieces, 0)?;
            if owner == self.context.owner() {
                let mut start = 0;
                for piece in owned {
                    let from = start..start + piece.wire.len();
                    start = from.end;
                    let tensor = self.read_from(&part);
                    let to = piece.slice.partition.clone();
                    launched.arrivals.push(Arrival { tensor, from, to });
                }
            }
            let purpose = format!("{} for rank {owner}", purpose(params));
            launched.pending.push(communicator.start_reduce_sum(&part, owner, &purpose)?);
        }
        Ok(launched)
    }

    /// Each parameter is cut into equal parts: a bucket is, too.
    fn reduce_scatter(&self, wire: &Tensor, params: &[usize]) -> Result<Launched> {
        let Context { communicator, partitioning, .. } = &*self.context;
        let parts: Vec<Range<usize>> =
            params.iter().filter_map(|&param| partitioning.part(param)).collect();
        let total: usize = parts.iter().map(Range::len).sum();
        let zeros = |numel: usize| -> Result<Tensor> {
            let options = (wire.kind(), wire.device());
            Ok(Tensor::f_zeros([i64::try_from(numel)?], options)?)
        };
        let (input, output) = (zeros(total * communicator.world_size())?, zeros(total)?);
        for Placed { position, wire: from, slice } in self.placed(params) {
            // What lies before this parameter in each rank's part of the bucket.
            let before: usize = parts[..position].iter().map(Range::len).sum();
            let to = slice.rank * total + before;
            narrow(&input, to..to + from.len())?.f_copy_(&narrow(wire, from)?)?;
        }
        let mut start = 0;
        let mut arrivals = Vec::new();
        for to in parts {
            let from = start..start + to.len();
            start = from.end;
            arrivals.push(Arrival { tensor: self.read_from(&output), from, to });
        }
        let pending = communicator.start_reduce_scatter_sum(&output, &input, &purpose(params))?;
        Ok(Launched { pending: vec![pending], arrivals, factor: 1.0 })
    }

    /// What this rank owns of gradients that lie in `wire` one after the other.
    fn own(&self, wire: &Tensor, params: &[usize]) -> Vec<Arrival> {
        let mine = self.placed(params).into_iter().filter(|p| p.slice.rank == self.context.owner());
        mine.map(|Placed { wire: from, slice, .. }| Arrival {
            tensor: wire.shallow_clone(),
            from,
            to: slice.partition,
        })
        .collect()
    }

    /// The slices of gradients that lie one after the other.
    fn placed(&self, params: &[usize]) -> Vec<Placed> {
        let mut start = 0;
        let mut placed = Vec::new();
        for (position, &index) in params.iter().enumerate() {
            for slice in self.context.partitioning.slices(index) {
                let wire = start + slice.param.start..start + slice.param.end;
                placed.push(Placed { position, wire, slice });
            }
            start += self.context.plan.params()[index].numel();
        }
        placed
    }
}

fn purpose(params: &[usize]) -> String {
    format!("bucket with parameters {params:?}")
}
