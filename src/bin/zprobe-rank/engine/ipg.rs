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
use zprobe::spec::{Fault, Shape};
use zprobe::trace::{Event, FlushReason, LayoutName, Phase, Point};

use super::bucket::{Bucket, Contents};
use super::context::{Context, Microbatch};
use super::flat::narrow;
use super::hooks::{GradientSink, Hooked};
use super::offload::HostGradient;
use super::reduction::Reducer;
use super::{GradientFlow, in_model_order};
use crate::recorder::{Pieces, kind_of};
use crate::shim::autograd::{HookKind, clear_grad};

/// The buckets of one rank.
pub struct IpgBuckets {
    context: Rc<Context>,
    gradients: Hooked<Gradients>,
    host: Option<HostGradient>,
}

struct Gradients {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// Sums over microbatches in flat order; none where autograd's own `param.grad` is wide enough.
    accumulated: Option<Tensor>,
    bucket: Bucket,
    reducer: Reducer,
    current: Microbatch,
    /// Parameters whose gradients of this reduction were put into a bucket.
    queued: Vec<bool>,
    flushes: usize,
    /// A bucket that the next one is put before, with that fault.
    held: Option<Contents>,
}

impl IpgBuckets {
    /// Empty buckets, with a hook on every trainable parameter.
    pub fn new(context: Rc<Context>, params: &[Tensor]) -> Result<Self> {
        let spec = &context.spec;
        let buffers = match (spec.contiguous_gradients(), spec.overlap_comm()) {
            (Some(false), _) => 0,
            (_, Some(true)) if !context.has(Fault::BufferOverwritten) => 2,
            _ => 1,
        };
        let gradients = Gradients {
            params: params.iter().map(Tensor::shallow_clone).collect(),
            // From stage 2 on nothing is accumulated before the reduction.
            accumulated: (context.accumulation_dtype() != spec.dtype && spec.stage < 2)
                .then(|| context.flat_zeros(context.accumulation_dtype()))
                .transpose()?,
            bucket: Bucket::new(
                spec.reduce_bucket_size,
                context.plan.numel(),
                (kind_of(context.wire_dtype()), context.device),
                buffers,
            )?,
            reducer: Reducer::new(Rc::clone(&context))?,
            current: Microbatch { step: 0, index: 0, complete: false, boundary: false },
            queued: vec![false; params.len()],
            flushes: 0,
            held: None,
            context: Rc::clone(&context),
        };
        let kind = if context.has(Fault::DeadHooks) {
            HookKind::UnkeptAccumulator
        } else {
            HookKind::PostAccumulateGrad
        };
        let registrations = if context.has(Fault::HookFiresTwice) { 2 } else { 1 };
        let host = HostGradient::of(&context)?;
        Ok(Self { gradients: Hooked::new(gradients, params, kind, registrations)?, host, context })
    }
}

impl GradientSink for Gradients {
    fn arrived(&mut self, param: usize) -> Result<()> {
        self.accumulate(param)?;
        if !self.reduces() {
            return Ok(());
        }
        if self.current.boundary && self.context.has(Fault::BoundaryLeak) {
            return self.reducer.keep_local(param, &self.accumulated(param)?);
        }
        self.put_into_bucket(param)?;
        let place = &self.context.plan.params()[param].name;
        if self.context.has(Fault::TiedReducedTwice) && Shape::Tied.param() == Some(place) {
            self.put_into_bucket(param)?;
        }
        Ok(())
    }
}

impl Gradients {
    fn begin(&mut self, microbatch: Microbatch) {
        if (microbatch.step, microbatch.index) != (self.current.step, self.current.index)
            && microbatch.index == 0
        {
            self.flushes = 0;
        }
        self.current = microbatch;
        self.queued.fill(false);
    }

    /// Whether gradients of the backward that runs go on to their owners.
    fn reduces(&self) -> bool {
        self.current.boundary || self.context.spec.stage >= 2
    }

    fn accumulate(&mut self, param: usize) -> Result<()> {
        let tensor = &self.params[param];
        let gradient = tensor.grad();
        if !gradient.defined() {
            return Ok(());
        }
        let gradient = gradient.detach().reshape([-1]);
        self.context.disturb(param, &gradient, self.current)?;
        // Without a buffer of their own, autograd has added it to `param.grad` already.
        if let (Some(accumulated), Some(place)) =
            (&self.accumulated, self.context.partitioning.place(param))
        {
            let mut sum = narrow(accumulated, place)?;
            let _ = sum.f_add_(&gradient.to_kind(sum.kind()))?;
            clear_grad(tensor)?;
        }
        Ok(())
    }

    /// Sum over the microbatches that were not reduced yet, flat; zeros if no gradient has arrived.
    fn accumulated(&self, param: usize) -> Result<Tensor> {
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

    fn put_into_bucket(&mut self, param: usize) -> Result<()> {
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

    /// A parameter that the last backward did not use may have gradients of earlier ones, here or
    /// on another rank.
    fn put_the_rest_into_buckets(&mut self) -> Result<()> {
        for param in (0..self.params.len()).rev() {
            if !self.queued[param] && self.context.plan.params()[param].trainable {
                self.put_into_bucket(param)?;
            }
        }
        Ok(())
    }

    /// Whether a trainable parameter was not used by the backward that ran.
    fn awaits_some(&self) -> bool {
        let params = self.context.plan.params();
        self.queued.iter().zip(params).any(|(queued, param)| param.trainable && !queued)
    }

    fn flush(&mut self, reason: FlushReason) -> Result<()> {
        let contents = self.bucket.take()?;
        if let (FlushReason::Boundary, true, Some(&last)) =
            (reason, self.context.has(Fault::BucketFlushedEarly), contents.params.last())
        {
            let numel = contents.wire.numel();
            let missing = numel - self.context.plan.params()[last].numel()..numel;
            let _ = narrow(&contents.wire, missing)?.f_zero_()?;
        }
        self.average(reason, contents)
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
        let first = self.current.step == 0 && self.flushes == 1;
        if first && self.context.has_here(Fault::CollectivesSwapped) {
            // A copy: the buffer is filled again.
            let Contents { wire, params } = contents;
            self.held = Some(Contents { wire: wire.copy(), params });
            return Ok(());
        }
        self.reducer.average(contents, self.current)?;
        self.release_held()
    }

    /// Reduces the bucket that another one was put before.
    fn release_held(&mut self) -> Result<()> {
        match self.held.take() {
            Some(contents) => self.reducer.average(contents, self.current),
            None => Ok(()),
        }
    }

    /// Reduces what is left when backward is over.
    fn reduce_the_rest(&mut self) -> Result<()> {
        self.context.phase(self.current, Phase::Reduce)?;
        let waits = self.context.has(Fault::UnusedWaitedFor) && self.awaits_some();
        if !self.context.has(Fault::DeadHooks) && !waits {
            self.put_the_rest_into_buckets()?;
        }
        if waits || self.context.has(Fault::BucketNeverFlushed) {
            drop(self.bucket.take()?);
        } else if !self.bucket.is_empty() || self.flushes == 0 {
            // An oversized parameter at the end leaves nothing behind; a step without any flush is
            // worth an event all the same.
            self.flush(FlushReason::Boundary)?;
        }
        self.release_held()?;
        self.reducer.finish()?;
        self.forget_local()
    }

    /// What was reduced is the owners'.
    fn forget_local(&mut self) -> Result<()> {
        if let Some(accumulated) = &mut self.accumulated {
            let _ = accumulated.f_zero_()?;
        }
        self.params.iter().try_for_each(clear_grad)
    }

    /// The gradients of this rank alone, in the model's order.
    fn local(&self) -> Result<Pieces> {
        let kind = kind_of(self.context.accumulation_dtype());
        in_model_order(&self.context, kind, |param| self.accumulated(param))
    }
}

impl GradientFlow for IpgBuckets {
    fn class(&self) -> &'static str {
        match self.context.spec.stage {
            3 => "zprobe IpgBuckets (as DeepSpeedZeroOptimizer_Stage3)",
            _ => "zprobe IpgBuckets (as DeepSpeedZeroOptimizer)",
        }
    }

    fn backward(&mut self, loss: &Tensor, microbatch: Microbatch, scale: f64) -> Result<()> {
        let context = Rc::clone(&self.context);
        let leak = microbatch.boundary && context.has(Fault::BoundaryLeak);
        let record = |point, gradient: &Tensor| {
            let at = microbatch.at(point, LayoutName::Partition);
            context.recorder.buffer(at, &Pieces::whole(gradient).unscaled(scale))
        };
        {
            let mut gradients = self.gradients.sink();
            gradients.begin(microbatch);
            if leak {
                gradients.reduce_the_rest()?;
                record(Point::Reduced, gradients.reducer.averaged())?;
            }
        }
        let fired = self.gradients.backward(loss)?;
        let mut gradients = self.gradients.sink();
        let Microbatch { step, index, .. } = microbatch;
        context.recorder.emit(Event::HooksFired {
            step,
            microbatch: index,
            fired,
            arrived: None,
        })?;
        if context.spec.stage < 2 && microbatch.complete {
            let at = microbatch.at(Point::Accumulator, LayoutName::Full);
            if context.recorder.wants(at.point) {
                context.recorder.buffer(at, &gradients.local()?.unscaled(scale))?;
            }
        }
        if let (true, Some(host)) = (context.has(Fault::OffloadCopiedEarly), &mut self.host)
            && microbatch.boundary
        {
            host.copy_from(gradients.reducer.averaged())?;
        }
        if gradients.reduces() && !leak {
            gradients.reduce_the_rest()?;
        } else if context.has(Fault::EmptyBucketFlush) {
            gradients.flush(FlushReason::Boundary)?;
        }
        if gradients.reduces() && microbatch.complete && !leak {
            record(Point::Reduced, gradients.reducer.averaged())?;
        }
        if microbatch.boundary {
            if let (false, Some(host)) = (context.has(Fault::OffloadCopiedEarly), &mut self.host) {
                host.copy_from(gradients.reducer.averaged())?;
            }
            record(Point::BeforeStep, gradients.reducer.averaged())?;
        }
        Ok(())
    }

    fn partition_gradient(&self) -> Result<Tensor> {
        Ok(match &self.host {
            Some(host) => host.gradient()?,
            None => self.gradients.sink().reducer.averaged().to_kind(Kind::Float).copy(),
        })
    }

    fn zero_grad(&mut self) -> Result<()> {
        let mut gradients = self.gradients.sink();
        gradients.reducer.zero()?;
        gradients.forget_local()
    }
}
