//! The diagnosis turns a trace into a report with pure functions: it starts no processes and reads no clock.
//!
//! [`observed`] sorts the events, [`placement`] says which rank holds which elements, [`decode`] reads contribution
//! weights from buffers, and [`deviation`] compares the weights with the plan and recognises patterns. The [`rules`]
//! turn deviations and other facts into findings, and [`causes`] attaches each consequence to its root cause. A live
//! run and `zprobe show RUN_DIR` both call [`diagnose`] with the trace read from disk.

pub mod account;
pub mod bounds;
pub mod case;
pub mod causes;
mod coverage;
pub mod decode;
pub mod deviation;
mod diagnosis;
pub mod displaced;
pub mod displacement;
mod hooks;
pub mod infinity;
mod journey;
mod judged;
mod location;
mod loss;
pub mod missing;
pub mod norm;
pub mod observed;
pub mod overflow;
mod own_changes;
pub mod placement;
pub mod race;
mod remarks;
pub mod repeats;
mod replicas;
pub mod rule;
pub mod rules;
pub mod scope;
mod signatures;
mod stacks;
mod steps;
mod summary;
mod wording;

pub use self::diagnosis::diagnose;
