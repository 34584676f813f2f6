//! The laboratory: experiments, which are many runs, over one queue.
//!
//! - [`run`]: one run, or the same run over and over (`repeat`).
//! - [`minimise`]: the smallest configuration that still shows a finding.
//! - [`compare`]: two runs side by side.
//! - [`check`]: a suite of probes for a CI.
//! - [`sweep`]: one engine over the lattice of its configurations.
//! - [`bisect`]: the first release in which a run shows a finding.
//! - [`zoo`]: known bugs on the releases that have them, and on those that do not.
//!
//! All of them have their runs made in one way. A `queue::Queue` starts them, and alone decides when no more
//! are started: after a signal, after a failure, when time is up. What is finished by then is kept. A
//! `runner::Runner` makes the runs of this process, over ranks that are started for each run (cold) or forked
//! by a pool that has loaded the engine (warm). Runs of one process take place one after the other; runs side by
//! side, and those that must not harm each other, are made by `worker::Worker`s, which are processes.
//!
//! An experiment knows no flags. What is to be run comes to it as an [`order::Order`], or as the arguments of
//! `zprobe run`, which it has the command line read.

pub mod agents;
mod answer;
pub mod attachment;
pub mod bisect;
pub mod check;
pub mod compare;
pub mod console;
pub mod cuda;
pub mod doctor;
pub mod environment;
pub mod lattice;
pub mod limits;
pub mod minimise;
pub mod native;
pub mod order;
mod pooled;
pub mod python;
mod queue;
pub mod recorded;
mod repeat;
pub mod run;
mod runner;
mod scratch;
pub mod secrets;
pub mod store;
pub mod sweep;
pub mod table;
pub mod worker;
pub mod zoo;
