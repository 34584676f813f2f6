//! Faults of the reduction: buckets are reduced too late, in the wrong order, with the wrong list of parameters, or not
//! at all.

use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::{Injected, add_unaveraged, fill_with_garbage};
use crate::engine::bucket::BucketContents;
use crate::engine::context::Context;
use crate::engine::flat::narrow;
use crate::engine::reduction::{BucketReduction, Reducer};

/// The reduction for the engine, faulty if `fault` is a fault of reductions.
pub fn reduction(
    fault: Injected,
    context: &Rc<Context>,
    sound: Reducer,
) -> Result<Box<dyn BucketReduction>> {
    let context = Rc::clone(context);
    let faulty: Box<dyn ReductionFault> = match fault {
        Some(Fault::BucketNotAveraged) => Box::new(FirstUnaveraged { context, buckets: 0 }),
        Some(Fault::StaleParameterList) => Box::new(StaleList { context, last: Vec::new() }),
        Some(Fault::BufferOverwritten) => Box::new(ReducedLate { bucket: None }),
        Some(Fault::CollectivesSwapped) => {
            Box::new(ReductionsSwapped { is_first: true, held: None })
        }
        Some(Fault::BufferNotSet) => {
            fill_with_garbage(sound.averaged())?;
            return Ok(Box::new(sound));
        }
        _ => return Ok(Box::new(sound)),
    };
    Ok(Box::new(FaultyReduction { sound, fault: faulty }))
}

/// A fault of a reduction. The default methods do nothing.
trait ReductionFault {
    /// Replaces [`BucketReduction::average`].
    fn average(&mut self, sound: &mut Reducer, contents: BucketContents) -> Result<()>;

    /// Runs before [`BucketReduction::finish`].
    fn finish(&mut self, _sound: &mut Reducer) -> Result<()> {
        Ok(())
    }

    /// Runs before [`BucketReduction::zero`].
    fn zero(&mut self) {}
}

/// A sound reducer with a fault that changes some of its operations.
struct FaultyReduction {
    sound: Reducer,
    fault: Box<dyn ReductionFault>,
}

impl BucketReduction for FaultyReduction {
    fn average(&mut self, contents: BucketContents) -> Result<()> {
        self.fault.average(&mut self.sound, contents)
    }

    fn finish(&mut self) -> Result<()> {
        self.fault.finish(&mut self.sound)?;
        self.sound.finish()
    }

    fn averaged(&self) -> &Tensor {
        self.sound.averaged()
    }

    fn zero(&mut self) -> Result<()> {
        self.fault.zero();
        self.sound.zero()
    }
}

/// The fault that does not average the first bucket of each step, so that each rank keeps its own gradients.
struct FirstUnaveraged {
    context: Rc<Context>,
    buckets: usize,
}

impl ReductionFault for FirstUnaveraged {
    fn average(&mut self, sound: &mut Reducer, contents: BucketContents) -> Result<()> {
        self.buckets += usize::from(contents.wire.numel() > 0);
        if self.buckets > 1 {
            return sound.average(contents);
        }
        let mut start = 0;
        for param in contents.params {
            let place = start..start + self.context.plan.params()[param].numel();
            start = place.end;
            let gradient = narrow(&contents.wire, place)?;
            add_unaveraged(&self.context, sound.averaged(), param, &gradient)?;
        }
        Ok(())
    }

    fn zero(&mut self) {
        self.buckets = 0;
    }
}

/// The fault that splits a bucket by the parameter list of the previous bucket.
struct StaleList {
    context: Rc<Context>,
    last: Vec<usize>,
}

impl ReductionFault for StaleList {
    fn average(&mut self, sound: &mut Reducer, contents: BucketContents) -> Result<()> {
        let BucketContents { wire, params } = contents;
        if wire.numel() == 0 {
            return Ok(());
        }
        let mut list = std::mem::replace(&mut self.last, params.clone());
        if list.is_empty() {
            list = params;
        }
        let mut end = 0;
        // Parameters that would end past the end of the buffer are left out.
        list.retain(|&param| {
            end += self.context.plan.params()[param].numel();
            end <= wire.numel()
        });
        sound.average(BucketContents { wire, params: list })
    }
}

/// The fault that reduces a bucket only when the next bucket is full.
struct ReducedLate {
    bucket: Option<BucketContents>,
}

impl ReductionFault for ReducedLate {
    fn average(&mut self, sound: &mut Reducer, contents: BucketContents) -> Result<()> {
        self.bucket.replace(contents).map_or(Ok(()), |late| sound.average(late))
    }

    fn finish(&mut self, sound: &mut Reducer) -> Result<()> {
        self.bucket.take().map_or(Ok(()), |late| sound.average(late))
    }
}

/// The fault that swaps the reductions of the first two buckets.
struct ReductionsSwapped {
    is_first: bool,
    held: Option<BucketContents>,
}

impl ReductionFault for ReductionsSwapped {
    fn average(&mut self, sound: &mut Reducer, contents: BucketContents) -> Result<()> {
        if std::mem::take(&mut self.is_first) {
            // The content is copied, because the bucket's buffer is filled again before this reduction.
            let BucketContents { wire, params } = contents;
            self.held = Some(BucketContents { wire: wire.copy(), params });
            return Ok(());
        }
        sound.average(contents)?;
        self.finish(sound)
    }

    fn finish(&mut self, sound: &mut Reducer) -> Result<()> {
        self.held.take().map_or(Ok(()), |held| sound.average(held))
    }
}
