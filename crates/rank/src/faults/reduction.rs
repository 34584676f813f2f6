//! Faults of the reduction: buckets are reduced too late, in the wrong order, with the wrong list of parameters, or not
//! at all.

use std::rc::Rc;

use anyhow::Result;
use tch::Tensor;
use zprobe_model::spec::Fault;

use super::{Injected, add_unaveraged, fill_with_garbage};
use crate::engine::bucket::Contents;
use crate::engine::context::Context;
use crate::engine::flat::narrow;
use crate::engine::reduction::{Reducer, Reduction};

/// The reduction for the engine, with a slip if the fault asks for one.
pub fn reduction(
    fault: Injected,
    context: &Rc<Context>,
    sound: Reducer,
) -> Result<Box<dyn Reduction>> {
    let context = Rc::clone(context);
    let slip: Box<dyn Slip> = match fault {
        Some(Fault::BucketNotAveraged) => Box::new(FirstUnaveraged { context, buckets: 0 }),
        Some(Fault::StaleParameterList) => Box::new(StaleList { context, last: Vec::new() }),
        Some(Fault::BufferOverwritten) => Box::new(Late { bucket: None }),
        Some(Fault::CollectivesSwapped) => Box::new(Swapped { is_first: true, held: None }),
        Some(Fault::BufferNotSet) => {
            fill_with_garbage(sound.averaged())?;
            return Ok(Box::new(sound));
        }
        _ => return Ok(Box::new(sound)),
    };
    Ok(Box::new(Slipping { sound, slip }))
}

/// A slip of a reduction. The default of each method does nothing wrong.
trait Slip {
    /// Replaces [`Reduction::average`].
    fn average(&mut self, sound: &mut Reducer, contents: Contents) -> Result<()>;

    /// Runs before [`Reduction::finish`].
    fn finish(&mut self, _sound: &mut Reducer) -> Result<()> {
        Ok(())
    }

    /// Runs before [`Reduction::zero`].
    fn zero(&mut self) {}
}

/// A sound reducer, wrapped with a slip.
struct Slipping {
    sound: Reducer,
    slip: Box<dyn Slip>,
}

impl Reduction for Slipping {
    fn average(&mut self, contents: Contents) -> Result<()> {
        self.slip.average(&mut self.sound, contents)
    }

    fn finish(&mut self) -> Result<()> {
        self.slip.finish(&mut self.sound)?;
        self.sound.finish()
    }

    fn averaged(&self) -> &Tensor {
        self.sound.averaged()
    }

    fn zero(&mut self) -> Result<()> {
        self.slip.zero();
        self.sound.zero()
    }
}

/// The slip that does not average the first bucket of each step, so that each rank keeps its own gradients.
struct FirstUnaveraged {
    context: Rc<Context>,
    buckets: usize,
}

impl Slip for FirstUnaveraged {
    fn average(&mut self, sound: &mut Reducer, contents: Contents) -> Result<()> {
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

/// The slip that splits a bucket by the parameter list of the previous bucket.
struct StaleList {
    context: Rc<Context>,
    last: Vec<usize>,
}

impl Slip for StaleList {
    fn average(&mut self, sound: &mut Reducer, contents: Contents) -> Result<()> {
        let Contents { wire, params } = contents;
        if wire.numel() == 0 {
            return Ok(());
        }
        let mut list = std::mem::replace(&mut self.last, params.clone());
        if list.is_empty() {
            list = params;
        }
        let mut end = 0;
        // Only parameters that fit into the buffer's elements are kept.
        list.retain(|&param| {
            end += self.context.plan.params()[param].numel();
            end <= wire.numel()
        });
        sound.average(Contents { wire, params: list })
    }
}

/// The slip that reduces a bucket only when the next bucket is full.
struct Late {
    bucket: Option<Contents>,
}

impl Slip for Late {
    fn average(&mut self, sound: &mut Reducer, contents: Contents) -> Result<()> {
        self.bucket.replace(contents).map_or(Ok(()), |late| sound.average(late))
    }

    fn finish(&mut self, sound: &mut Reducer) -> Result<()> {
        self.bucket.take().map_or(Ok(()), |late| sound.average(late))
    }
}

/// The slip that swaps the reductions of the first two buckets.
struct Swapped {
    is_first: bool,
    held: Option<Contents>,
}

impl Slip for Swapped {
    fn average(&mut self, sound: &mut Reducer, contents: Contents) -> Result<()> {
        if std::mem::take(&mut self.is_first) {
            // The content is copied, because the buffer is filled again.
            let Contents { wire, params } = contents;
            self.held = Some(Contents { wire: wire.copy(), params });
            return Ok(());
        }
        sound.average(contents)?;
        self.finish(sound)
    }

    fn finish(&mut self, sound: &mut Reducer) -> Result<()> {
        self.held.take().map_or(Ok(()), |held| sound.average(held))
    }
}
