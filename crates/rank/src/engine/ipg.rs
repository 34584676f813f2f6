//! Hooks fill IPG buckets, which are reduced when full and when nothing more can come.
//!
//! Follows `DeepSpeedZeroOptimizer` in `runtime/zero/stage_1_and_2.py`: a hook on every parameter
//! accumulates its gradient and copies it into the bucket
//! (`reduce_independent_p_g_buckets_and_remove_grads`); a full bucket is averaged over the ranks
//! (`reduce_ipg_grads`), and each rank keeps the slices that it owns (`averaged_gradients`). Up to
//! stage 1 gradients wait for the boundary where they are; from stage 2 on each backward's are
//! reduced at once, and what is accumulated is the owner's average (stage 3: `runtime/zero/stage3.py`,
//! `partition_grads`).

use std::rc::Rc;

use anyhow::Result;
use tch::{Kind, Tensor};
use zprobe_model::trace::{Event, FlushReason, LayoutName, Point};

use super::bucket::{Bucket, Contents};
use super::context::{Context, Microbatch};
use super::flat::narrow;
use super::flow::GradientFlow;
use super::offload::HostGradient;
use super::reduction::Reduction;
use crate::dtype::kind_of;
use crate::recorder::Pieces;
use crate::shim::autograd::clear_grad;

/// The bucket of one rank, and the gradients on both sides of it.
pub struct IpgBuckets {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// Sums over microbatches in flat order; none where autograd's own `param.grad` is wide enough.
    accumulated: Option<Tensor>,
    bucket: Bucket,
    reduction: Box<dyn Reduction>,
    host: Option<HostGradient>,
    current: Microbatch,
    /// Parameters whose gradients of this reduction were put into a bucket.
    queued: Vec<bool>,
    flushes: usize,
}

impl IpgBuckets {
    /// Empty buckets.
    pub fn new(
        context: Rc<Context>,
        params: &[Tensor],
        reduction: Box<dyn Reduction>,
    ) -> Result<Self> {
        let Context { spec, settings, partitioning, .. } = &*context;
        // From stage 2 on nothing is accumulated before the reduction.
        let accumulated = (settings.accumulation_dtype != spec.dtype && spec.stage < 2)
            .then(|| context.gradient_buffer(partitioning.numel()))
            .transpose()?;
        let bucket = Bucket::new(
            (spec.reduce_bucket_size, settings.bucket_room),
            context.plan.numel(),
            (kind_of(settings.wire_dtype), context.device),
            settings.bucket_buffers,
        )?;
        Ok(Self {
            params: params.iter().map(Tensor::shallow_clone).collect(),
            accumulated,
            bucket,
            reduction,
            host: HostGradient::of(&context)?,
            current: Microbatch::NONE,
            queued: vec![false; params.len()],
            flushes: 0,
            context,
        })
    }

    /// Adds a parameter's new gradient to those of earlier microbatches.
    pub fn accumulate(&mut self, param: usize) -> Result<()> {
        let tensor = &self.params[param];
        // Without a buffer of their own, autograd has added it to `param.grad` already.
        if let (Some(accumulated), Some(place)) =
            (&self.accumulated, self.context.partitioning.place(param))
            && tensor.grad().defined()
        {
            let mut sum = narrow(accumulated, place)?;
            let _ = sum.f_add_(&tensor.grad().detach().reshape([-1]).to_kind(sum.kind()))?;
            clear_grad(tensor)?;
        }
        Ok(())
    }

    /// Sum over the microbatches that were not reduced yet, flat; zeros if no gradient has arrived.
    pub fn accumulated(&self, param: usize) -> Result<Tensor> {
        let tensor = &self.params[param];
        Ok(match (&self.accumulated, self.context.partitioning.place(param)) {
            (Some(flat), Some(place)) => narrow(flat, place)?,
            _ if tensor.grad().defined() => tensor.grad().detach().reshape([-1]),
            _ => {
                let numel = i64::try_from(self.context.plan.params()[param].numel())?;
                Tensor::f_zeros([numel], (tensor.kind(), tensor.device()))?
            }
        })
    }

    /// This rank's partition of the gradients averaged so far.
    pub fn averaged(&self) -> &Tensor {
        self.reduction.averaged()
    }

    /// The bucket that is being filled.
    pub fn bucket(&mut self) -> &mut Bucket {
        &mut self.bucket
    }

    /// Queues the accumulated gradient of a parameter for the next reduction.
    pub fn put_into_bucket(&mut self, param: usize) -> Result<()> {
        self.queued[param] = true;
        let gradient = self.accumulated(param)?;
        let numel = gradient.numel();
        if !self.bucket.fits(numel) && !self.bucket.is_empty() {
            self.flush(FlushReason::Full)?;
        }
        if numel > self.bucket.capacity() {
            let contents = Contents { wire: self.bucket.alone(&gradient), params: vec![param] };
            return self.average(FlushReason::Oversized, contents);
        }
        self.bucket.put(param, &gradient)
    }

    /// Queues the parameters that the last backward did not use: they may have gradients of earlier
    /// ones, here or on another rank.
    pub fn put_the_rest_into_bucket(&mut self) -> Result<()> {
        for param in (0..self.params.len()).rev() {
            if !self.queued[param] && self.context.plan.params()[param].trainable {
                self.put_into_bucket(param)?;
            }
        }
        Ok(())
    }

    /// Reduces the bucket.
    pub fn flush(&mut self, reason: FlushReason) -> Result<()> {
        let contents = self.bucket.take()?;
        self.average(reason, contents)
    }

    /// Reduces the rest in the bucket when no more gradients can come.
    pub fn flush_the_rest(&mut self) -> Result<()> {
        // An oversized parameter at the end leaves nothing behind; a step without any flush is
        // worth an event all the same.
        if self.bucket.is_empty() && self.flushes > 0 {
            return Ok(());
        }
        self.flush(FlushReason::Boundary)
    }

    fn average(&mut self, reason: FlushReason, contents: Contents) -> Result<()> {
        self.context.recorder.emit(Event::BucketFlushed {
            step: self.current.step,
            microbatch: self.current.index,
            flush: self.flushes,
            reason,
            elements: contents.wire.numel(),
            capacity: self.bucket.capacity(),
            params: contents.params.clone(),
        })?;
        self.flushes += 1;
        self.reduction.average(contents)
    }

    /// Ends the reductions of this backward. Reduced gradients are kept by their owners only.
    pub fn finish(&mut self) -> Result<()> {
        self.reduction.finish()?;
        self.forget_local()?;
        if self.current.complete { self.record_averaged(Point::Reduced) } else { Ok(()) }
    }

    fn forget_local(&mut self) -> Result<()> {
        if let Some(accumulated) = &mut self.accumulated {
            let _ = accumulated.f_zero_()?;
        }
        self.params.iter().try_for_each(clear_grad)
    }

    fn record_averaged(&self, point: Point) -> Result<()> {
        let averaged = Pieces::whole(self.averaged());
        self.context.record(self.current, (point, LayoutName::Partition), averaged)
    }
}

impl GradientFlow for IpgBuckets {
    fn class(&self) -> &'static str {
        match self.context.spec.stage {
            3 => "zprobe IpgBuckets (as DeepSpeedZeroOptimizer_Stage3)",
            _ => "zprobe IpgBuckets (as DeepSpeedZeroOptimizer)",
        }
    }

    fn begin(&mut self, microbatch: Microbatch) -> Result<()> {
        if microbatch.step != self.current.step {
            self.flushes = 0;
        }
        self.current = microbatch;
        self.queued.fill(false);
        Ok(())
    }

    fn arrived(&mut self, param: usize) -> Result<()> {
        self.accumulate(param)?;
        if self.reduces() { self.put_into_bucket(param) } else { Ok(()) }
    }

    fn end(&mut self) -> Result<()> {
        let (stage, point) = (self.context.spec.stage, Point::Accumulator);
        if stage >= 2 || !self.current.complete || !self.context.recorder.wants(point) {
            return Ok(());
        }
        let kind = kind_of(self.context.settings.accumulation_dtype);
        let pieces = self.context.in_model_order(kind, |param| self.accumulated(param))?;
        self.context.record(self.current, (point, LayoutName::Full), pieces)
    }

    fn reduces(&self) -> bool {
        self.current.boundary || self.context.spec.stage >= 2
    }

    fn reduce(&mut self) -> Result<()> {
        self.put_the_rest_into_bucket()?;
        self.flush_the_rest()?;
        self.finish()
    }

    fn partition_gradient(&mut self) -> Result<Tensor> {
        let averaged = self.reduction.averaged();
        if let Some(host) = &mut self.host {
            host.copy_from(averaged)?;
        }
        self.record_averaged(Point::BeforeStep)?;
        match &mut self.host {
            Some(host) => host.gradient(),
            None => Ok(self.averaged().to_kind(Kind::Float).copy()),
        }
    }

    fn zero_grad(&mut self) -> Result<()> {
        self.reduction.zero()?;
        self.forget_local()
    }
}
