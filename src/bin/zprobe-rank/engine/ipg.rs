//! Hooks fill IPG buckets, which are reduced when full and at the boundary.
//!
//! Follows `DeepSpeedZeroOptimizer` in `runtime/zero/stage_1_and_2.py`: a hook on every parameter
//! accumulates its gradient, and at the boundary copies it into the bucket
//! (`reduce_independent_p_g_buckets_and_remove_grads`); a full bucket is averaged over the ranks
//! (`reduce_ipg_grads`, `average_tensor`), and each rank keeps the slices that it owns
//! (`averaged_gradients`).

use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

use anyhow::{Error, Result};
use tch::{Device, Kind, Tensor};
use zprobe::spec::Fault;
use zprobe::trace::{Event, FlushReason, LayoutName, Phase, Point};

use super::{Context, GradientFlow, Microbatch, narrow, zeros};
use crate::recorder::kind_of;
use crate::shim::autograd::{HookKind, clear_grad, register_hooks};

/// The buckets of one rank. The state is shared with the hooks, which autograd calls in the middle
/// of [`GradientFlow::backward`].
pub struct IpgBuckets {
    /// The hooks hold its address.
    state: Rc<RefCell<State>>,
}

struct State {
    context: Rc<Context>,
    params: Vec<Tensor>,
    /// Sums over microbatches in flat order; none where autograd's own `param.grad` is wide enough.
    accumulated: Option<Tensor>,
    bucket: Bucket,
    /// This rank's partition of the averaged gradient, fp32.
    averaged: Tensor,
    current: Microbatch,
    fired: Vec<u32>,
    flushes: usize,
    failure: Option<Error>,
}

/// Gradients that wait for one reduction, one after the other in a contiguous buffer.
struct Bucket {
    capacity: usize,
    buffer: Tensor,
    elements: usize,
    params: Vec<usize>,
}

impl IpgBuckets {
    /// Empty buckets, with a hook on every parameter.
    pub fn new(context: Rc<Context>, params: &[Tensor]) -> Result<Self> {
        let spec = &context.spec;
        let capacity = spec.reduce_bucket_size;
        let partition = i64::try_from(context.plan.partition(0).len())?;
        // No bucket ever holds more than the model.
        let buffer_len = i64::try_from(capacity.min(context.plan.numel()))?;
        let comm_kind = kind_of(spec.narrowest_comm_dtype());
        let state = State {
            params: params.iter().map(Tensor::shallow_clone).collect(),
            accumulated: (spec.grad_accum_dtype != spec.dtype)
                .then(|| zeros(&context, spec.grad_accum_dtype))
                .transpose()?,
            bucket: Bucket {
                capacity,
                buffer: Tensor::f_empty([buffer_len], (comm_kind, Device::Cpu))?,
                elements: 0,
                params: Vec::new(),
            },
            averaged: Tensor::f_zeros([partition], (Kind::Float, Device::Cpu))?,
            current: Microbatch { step: 0, index: 0, boundary: false },
            fired: vec![0; params.len()],
            flushes: 0,
            failure: None,
            context,
        };
        let kind = if state.context.has(Fault::DeadHooks) {
            HookKind::UnkeptAccumulator
        } else {
            HookKind::PostAccumulateGrad
        };
        let state = Rc::new(RefCell::new(state));
        // SAFETY: the state lives as long as the engine, which runs every backward, and its address
        // does not change; `on_gradient` expects exactly this type.
        unsafe { register_hooks(params, kind, on_gradient, Rc::as_ptr(&state).cast_mut().cast())? };
        Ok(Self { state })
    }
}

/// Runs inside autograd: errors wait in the state until backward has returned.
extern "C" fn on_gradient(context: *mut c_void, index: usize) {
    // SAFETY: `context` is the address that `IpgBuckets::new` registered.
    let state = unsafe { &*context.cast::<RefCell<State>>() };
    let mut state = state.borrow_mut();
    if state.failure.is_none() {
        state.failure = state.process_gradient(index).err();
    }
}

impl State {
    /// A parameter's gradient of this microbatch is complete.
    fn process_gradient(&mut self, index: usize) -> Result<()> {
        self.fired[index] += 1;
        self.accumulate(index)?;
        if !self.current.boundary {
            return Ok(());
        }
        if self.context.has(Fault::BoundaryLeak) {
            return self.add_to_own_partition(index);
        }
        self.put_into_bucket(index)
    }

    fn accumulate(&mut self, index: usize) -> Result<()> {
        let param = &self.params[index];
        let mut gradient = param.grad();
        self.context.poison(&gradient.detach().reshape([-1]), self.current)?;
        let times = match self.context.spec.inject {
            Some(Fault::MicrobatchDropped) if self.current.index == 0 => 0,
            Some(Fault::MicrobatchDoubled) if self.current.index == 0 => 2,
            _ => 1,
        };
        match &self.accumulated {
            Some(accumulated) => {
                let mut sum = narrow(accumulated, self.context.plan.params()[index].range())?;
                let addend = gradient.reshape([-1]).to_kind(sum.kind());
                for _ in 0..times {
                    let _ = sum.f_add_(&addend)?;
                }
                clear_grad(param)?;
            }
            // autograd has added it to `param.grad` already.
            None if times != 1 => {
                let _ = gradient.detach_().f_mul_scalar_(f64::from(times))?;
            }
            None => {}
        }
        Ok(())
    }

    /// Sum over the microbatches so far, flat; zeros if no gradient has arrived.
    fn accumulated(&self, index: usize) -> Result<Tensor> {
        let param = &self.params[index];
        Ok(match &self.accumulated {
            Some(flat) => narrow(flat, self.context.plan.params()[index].range())?,
            None if param.grad().defined() => param.grad().detach().reshape([-1]),
            None => param.detach().zeros_like().reshape([-1]),
        })
    }

    fn put_into_bucket(&mut self, index: usize) -> Result<()> {
        let gradient = self.accumulated(index)?;
        let numel = gradient.numel();
        if self.bucket.elements + numel > self.bucket.capacity && !self.bucket.params.is_empty() {
            self.flush(FlushReason::Full)?;
        }
        if numel > self.bucket.capacity {
            let wire = gradient.to_kind(kind_of(self.context.spec.narrowest_comm_dtype())).copy();
            return self.average(FlushReason::Oversized, &wire, &[index]);
        }
        let start = self.bucket.elements;
        narrow(&self.bucket.buffer, start..start + numel)?.f_copy_(&gradient)?;
        self.bucket.elements += numel;
        self.bucket.params.push(index);
        Ok(())
    }

    fn flush(&mut self, reason: FlushReason) -> Result<()> {
        let wire = narrow(&self.bucket.buffer, 0..self.bucket.elements)?;
        let params = std::mem::take(&mut self.bucket.params);
        self.average(reason, &wire, &params)?;
        self.bucket.elements = 0;
        Ok(())
    }

    /// Averages `wire`, the gradients of `params` one after the other, and keeps what this rank
    /// owns of it.
    fn average(&mut self, reason: FlushReason, wire: &Tensor, params: &[usize]) -> Result<()> {
        let context = &self.context;
        context.recorder.emit(Event::BucketFlushed {
            step: self.current.step,
            microbatch: self.current.index,
            flush: self.flushes,
            reason,
            elements: wire.numel(),
            capacity: self.bucket.capacity,
            params: params.to_vec(),
        })?;
        self.flushes += 1;
        if wire.numel() == 0 {
            return Ok(());
        }
        let skipped = context.has_here(Fault::CollectiveSkipped)
            && self.current.step == 0
            && self.flushes == 1;
        if !context.has(Fault::NotAveraged) && !skipped {
            let _ = wire.shallow_clone().f_div_scalar_(context.communicator.world_size() as f64)?;
            context
                .communicator
                .all_reduce_sum(wire, &format!("bucket with parameters {params:?}"))?;
        }
        let mut start = 0;
        for &index in params {
            let range = context.plan.params()[index].range();
            let piece = narrow(wire, start..start + range.len())?;
            start += range.len();
            if let Some((mine, theirs)) = self.overlap(index) {
                narrow(&self.averaged, mine)?.f_copy_(&narrow(&piece, theirs)?)?;
            }
        }
        Ok(())
    }

    /// The part of a parameter that this rank owns: its place in the partition, and in the
    /// parameter.
    fn overlap(&self, index: usize) -> Option<(std::ops::Range<usize>, std::ops::Range<usize>)> {
        let plan = &self.context.plan;
        let own = plan.partition(self.context.communicator.rank());
        let param = plan.params()[index].range();
        let (start, end) = (own.start.max(param.start), own.end.min(param.end));
        (start < end)
            .then(|| (start - own.start..end - own.start, start - param.start..end - param.start))
    }

    /// The boundary leak: a gradient that comes after the reduction is added where it is.
    fn add_to_own_partition(&mut self, index: usize) -> Result<()> {
        let gradient = self.accumulated(index)?;
        if let Some((mine, theirs)) = self.overlap(index) {
            let local = narrow(&gradient, theirs)?.to_kind(Kind::Float);
            let _ = narrow(&self.averaged, mine)?.f_add_(&local)?;
        }
        Ok(())
    }

    /// Reduces what is left at the boundary.
    fn reduce_at_boundary(&mut self) -> Result<()> {
        self.context.phase(self.current, Phase::Reduce)?;
        // An oversized parameter at the end leaves nothing behind; a step without any flush is
        // worth an event all the same.
        if !self.bucket.params.is_empty() || self.flushes == 0 {
            self.flush(FlushReason::Boundary)?;
        }
        let at = self.current.at(Point::Reduced, LayoutName::Partition);
        self.context.recorder.buffer(at, &self.averaged)
    }

    fn record_accumulated(&self) -> Result<()> {
        let dtype = self.context.spec.grad_accum_dtype;
        let flat = zeros(&self.context, dtype)?;
        for (index, param) in self.context.plan.params().iter().enumerate() {
            narrow(&flat, param.range())?.f_copy_(&self.accumulated(index)?)?;
        }
        let at = self.current.at(Point::Accumulator, LayoutName::Full);
        self.context.recorder.buffer(at, &flat)
    }

    fn forget_accumulated(&mut self) -> Result<()> {
        if let Some(accumulated) = &mut self.accumulated {
            let _ = accumulated.f_zero_()?;
        }
        self.params.iter().try_for_each(clear_grad)
    }
}

impl GradientFlow for IpgBuckets {
    fn class(&self) -> &'static str {
        "zprobe IpgBuckets (as DeepSpeedZeroOptimizer)"
    }

    fn backward(&mut self, loss: &Tensor, microbatch: Microbatch) -> Result<()> {
        let leak = {
            let mut state = self.state.borrow_mut();
            state.current = microbatch;
            state.fired.fill(0);
            if microbatch.index == 0 {
                state.flushes = 0;
            }
            let leak = microbatch.boundary && state.context.has(Fault::BoundaryLeak);
            if leak {
                for index in 0..state.params.len() {
                    state.put_into_bucket(index)?;
                }
                state.reduce_at_boundary()?;
                state.forget_accumulated()?;
            }
            leak
        };
        // The hooks borrow the state while this runs.
        loss.f_backward()?;
        let mut state = self.state.borrow_mut();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.context.recorder.emit(Event::HooksFired {
            step: microbatch.step,
            microbatch: microbatch.index,
            fired: state.fired.clone(),
            arrived: None,
        })?;
        state.record_accumulated()?;
        if microbatch.boundary {
            if !leak {
                state.reduce_at_boundary()?;
            }
            let at = microbatch.at(Point::BeforeStep, LayoutName::Partition);
            state.context.recorder.buffer(at, &state.averaged)?;
        } else if state.context.has(Fault::EmptyBucketFlush) {
            state.flush(FlushReason::Boundary)?;
        }
        Ok(())
    }

    fn partition_gradient(&self) -> Result<Tensor> {
        Ok(self.state.borrow().averaged.copy())
    }

    fn zero_grad(&mut self) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let _ = state.averaged.f_zero_()?;
        state.forget_accumulated()
    }
}
