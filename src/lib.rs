//! zprobe answers one question about sharded data-parallel training: did every (rank, microbatch) gradient reach the
//! optimizer exactly once, with the right weight, in the right place, on every rank?
//!
//! The journey of the data, with one module for each station:
//!
//! 1. [`spec`]: turns the command line and a user's files into one validated [`spec::RunSpec`], whose [`spec::Plan`]
//!    says where every gradient should go.
//! 2. [`engines`]: has a room for each engine under test, with all facts about the engine.
//! 3. [`launch`]: starts and watches one process per rank, and writes their events to a [`trace::Trace`].
//! 4. `zprobe-rank` (a separate binary, the only code that links libtorch): runs the engine and emits
//!    [`trace::Event`]s. [`native`] defines how the binary is started, also with a libtorch for CUDA. The ranks of
//!    real engines are Python processes, started by [`adapters`].
//! 5. [`trace`]: the recorded events of a run; [`redact`] keeps secrets out of the record.
//! 6. [`diagnose`]: pure functions from a trace to [`report::Finding`]s.
//! 7. [`report`]: the report, which is built once and rendered in many formats.
//!
//! [`exec`] produces a trace in another way: from the command of a user's own training script.
//!
//! Above the journey, [`lab`] makes experiments of many runs over one queue.
//!
//! Several modules are about real releases of engines: [`environment`] makes Python environments with pinned
//! packages, [`zoo`] holds known bugs and their expected findings, [`lattice`] the configurations that are worth
//! trying, [`doctor`] says what a machine and a Python can run, and [`attachment`] makes a bug report of a run.
//!
//! [`job`] says whether a launcher started this process as one of several.
//!
//! All modules may use [`visible`], which makes untrusted text safe to display, [`console`], which shows it,
//! [`run_dir`], which creates and reads the files of a run, and [`document`], which reads the files that people
//! write.
//!
//! Dependencies point one way along the journey; `tests/it/journey.rs` checks this.

pub mod adapters;
pub mod answer;
pub mod attachment;
pub mod console;
pub mod diagnose;
pub mod doctor;
pub mod document;
pub mod engines;
pub mod environment;
pub mod exec;
pub mod job;
pub mod lab;
pub mod lattice;
pub mod launch;
pub mod native;
pub mod python;
pub mod redact;
pub mod report;
pub mod run_dir;
pub mod spec;
pub mod trace;
pub mod visible;
pub mod zoo;
