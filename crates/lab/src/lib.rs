//! The laboratory: experiments, which make many runs over one queue.
//!
//! - [`run`]: one run, or the same run over and over (`repeat`).
//! - [`minimise`]: the smallest configuration that still shows a finding.
//! - [`compare`]: two runs side by side.
//! - [`check`]: a suite of probes for CI.
//! - [`sweep`]: one engine over the lattice of its configurations.
//! - [`bisect`]: the first release in which a run shows a finding.
//! - [`zoo`]: known bugs on the releases that have them, and on releases that do not.
//!
//! All experiments make their runs in the same way. A `queue::Queue` starts the runs, and only the queue decides when
//! no more runs are started: after a signal, after a failure, when time is up. Finished runs are kept. A
//! `runner::Runner` makes the runs of this process, over ranks that are started for each run (cold) or forked by a
//! pool that has loaded the engine (warm). Runs of one process take place one after the other; runs side by side, and
//! runs that must not harm each other, are made by `worker::Worker`s, which are processes.
//!
//! An experiment knows no flags. Its run comes to it as an [`order::Order`], or as arguments of `zprobe run`, which
//! the command line parses.

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
pub mod runs;
mod scratch;
pub mod script;
pub mod secrets;
pub mod store;
pub mod sweep;
pub mod table;
pub mod tensorboard;
pub mod worker;
pub mod zoo;
