//! A gradient flow in which hooks fill an IPG bucket. A bucket is reduced when the next gradient does not fit, and the
//! last bucket is reduced after the last gradient.
//!
//! The module follows `DeepSpeedZeroOptimizer` in `runtime/zero/stage_1_and_2.py`. A hook on every parameter
//! accumulates the gradient and copies it into the bucket (`reduce_independent_p_g_buckets_and_remove_grads`). A full
//! bucket is averaged over the ranks (`reduce_ipg_grads`), and each rank keeps the slices that it owns
//! (`averaged_gradients`). Up to stage 1 each rank accumulates its own gradients until the boundary. From stage 2 on
//! every backward pass reduces its gradients at once, and the owners accumulate the averages (stage 3:
//! `runtime/zero/stage3.py`, `partition_grads`).

use std::rc::Rc;

use anyhow::Result;
use tch::{Kind, Tensor};
use zprobe_model::trace::{Event, FlushReason, LayoutName, Point};

use super::bucket::{Bucket, BucketContents};
use super::context::{Context, Microbatch};
use super::flat::narrow;
use super::flow::GradientFlow;
use super::offload::HostGradient;
use super::reduction::BucketReduction;
use crate::dtype::kind_of;
use crate::recorder::BufferPieces;
use crate::shim::autograd::clear_grad;

/// The bucket of one rank, with the gradients before and after the reduction.
pub struct IpgBuckets {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// The gradients summed over microbatches, in flat order; `None` if autograd accumulates them in `param.grad`.
    accumulated: Option<Tensor>,
    bucket: Bucket,
    reduction: Box<dyn BucketReduction>,
    host: Option<HostGradient>,
    current: Microbatch,
    /// For each parameter, true if the parameter's gradient was put into a bucket in this backward pass.
    queued: Vec<bool>,
    flushes: usize,
}

impl IpgBuckets {
    /// Creates the flow with an empty bucket.
    pub fn new(
        context: Rc<Context>,
        params: &[Tensor],
        reduction: Box<dyn BucketReduction>,
    ) -> Result<Self> {
        let Context { spec, settings, partitioning, .. } = &*context;
        // From stage 2 on, no gradients are accumulated before the reduction.
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

    /// Adds a parameter's new gradient to the sum over earlier microbatches.
    pub fn accumulate(&mut self, param: usize) -> Result<()> {
        let tensor = &self.params[param];
        // Without a separate buffer, autograd has already added the gradient to `param.grad`.
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

    /// A parameter's flat gradient, summed over the microbatches that are not reduced yet; zeros if no gradient has
    /// arrived.
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

    /// This rank's partition of the gradients that have been averaged so far.
    pub fn averaged(&self) -> &Tensor {
        self.reduction.averaged()
    }

    /// The bucket that is being filled.
    pub fn bucket(&mut self) -> &mut Bucket {
        &mut self.bucket
    }

    /// Puts the accumulated gradient of a parameter into the bucket. If the gradient does not fit, the content of the
    /// bucket is reduced first. A gradient larger than the bucket is reduced separately.
    pub fn put_into_bucket(&mut self, param: usize) -> Result<()> {
        self.queued[param] = true;
        let gradient = self.accumulated(param)?;
        let numel = gradient.numel();
        if !self.bucket.fits(numel) && !self.bucket.is_empty() {
            self.flush(FlushReason::Full)?;
        }
        if numel > self.bucket.capacity() {
            let contents =
                BucketContents { wire: self.bucket.alone(&gradient), params: vec![param] };
            return self.average(FlushReason::Oversized, contents);
        }
        self.bucket.put(param, &gradient)
    }

    /// Adds to the bucket the gradients of all parameters that this backward pass did not use. Such a parameter may
    /// have gradients of earlier passes, or gradients on other ranks.
    pub fn put_the_rest_into_bucket(&mut self) -> Result<()> {
        for param in (0..self.params.len()).rev() {
            if !self.queued[param] && self.context.plan.params()[param].trainable {
                self.put_into_bucket(param)?;
            }
        }
        Ok(())
    }

    /// Reduces the content of the bucket.
    pub fn flush(&mut self, reason: FlushReason) -> Result<()> {
        let contents = self.bucket.take()?;
        self.average(reason, contents)
    }

    /// Reduces the remaining content of the bucket, after the last gradient.
    pub fn flush_the_rest(&mut self) -> Result<()> {
        // The bucket is empty if the last gradient was larger than the bucket. A step without any flush still emits an
        // event.
        if self.bucket.is_empty() && self.flushes > 0 {
            return Ok(());
        }
        self.flush(FlushReason::Boundary)
    }

    fn average(&mut self, reason: FlushReason, contents: BucketContents) -> Result<()> {
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

    /// Waits for the reductions of this backward pass, and clears the local gradients. Only the owners keep the
    /// averaged gradients.
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
        let averaged = BufferPieces::whole(self.averaged());
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
