//! The faults of `--inject`, as variants of the engine's parts with a deliberate bug.
//!
//! Each function takes a sound part of the engine and returns the part for the engine, which is the sound part unless
//! the run's fault affects it. A part with a fault wraps the sound part and delegates all other behaviour to it.
//!
//! | module | affected part |
//! |------|-------------|
//! | [`settings`](settings()) | the numbers and dtypes |
//! | [`groups`](groups()) | the ranks of a collective, and its result |
//! | [`hook`](hook()) | the hooks that autograd calls |
//! | [`flow`] | a gradient flow, which gets the faults of `arrivals`, `buckets`, `leak`, `handover` and `process` |
//! | [`arrivals`] | a gradient before its accumulation |
//! | [`buckets`] | the content of a bucket, and the times of its flushes |
//! | [`leak`] | the order of accumulation and reduction |
//! | [`reduction`](reduction()) | the reduction of buckets |
//! | [`handover`] | the gradient that the optimizer gets |
//! | [`step`] | loss scale, clipping, the update and the all-gather |
//! | [`process`] | the process of a rank |

mod arrivals;
mod buckets;
mod flow;
mod groups;
mod handover;
mod hook;
mod leak;
mod process;
mod reduction;
mod settings;
mod step;

use tch::Tensor;
use zprobe_model::spec::{Fault, RunSpec};

pub use self::flow::{accumulator, ipg};
pub use self::groups::groups;
pub use self::hook::hook;
pub use self::reduction::reduction;
pub use self::settings::settings;
pub use self::step::{clip, scaler, update, weights};
use crate::engine::context::Context;
use crate::engine::flat::narrow;

/// The fault of a rank; `None` if the rank has no fault.
pub type Injected = Option<Fault>;

/// The fault of a run on this rank; some faults affect only the last rank.
pub fn of(spec: &RunSpec, rank: usize) -> Injected {
    let is_last = rank + 1 == spec.world_size;
    spec.inject().filter(|fault| is_last || !fault.is_of_last_rank())
}

/// Adds a flat gradient of only this rank, without averaging, to this rank's partition of the average.
fn add_unaveraged(
    context: &Context,
    averaged: &Tensor,
    param: usize,
    gradient: &Tensor,
) -> anyhow::Result<()> {
    for slice in context.partitioning.slices(param) {
        if slice.rank == context.settings.owner {
            let _ = narrow(averaged, slice.partition)?.f_add_(&narrow(gradient, slice.param)?)?;
        }
    }
    Ok(())
}

/// Fills a buffer with the content of uninitialised memory.
fn fill_with_garbage(buffer: &Tensor) -> anyhow::Result<()> {
    let garbage = Tensor::f_empty(buffer.size(), (buffer.kind(), buffer.device()))?;
    Ok(buffer.shallow_clone().f_copy_(&garbage)?)
}
