//! zprobe answers one question about sharded data-parallel training: did every (rank, microbatch)
//! gradient reach the optimizer exactly once, with the right weight, in the right place, on every
//! rank?
//!
//! The journey of the data, one module each:
//!
//! 1. [`spec`]: the command line and a user's files become one validated [`spec::RunSpec`]; its
//!    [`spec::Plan`] says where every gradient should go.
//! 2. [`engines`]: a room for each engine under test, with everything that is known of it.
//! 3. [`launch`]: one process per rank, watched; their events become a [`trace::Trace`].
//! 4. `zprobe-rank` (a binary of its own, the only code that links libtorch): runs the engine and
//!    emits [`trace::Event`]s.
//!    [`native`] says how it is started, with a libtorch for CUDA too.
//!    Ranks of real engines are Python, started by [`adapters`].
//! 5. [`trace`]: what happened, as it was written down; [`redact`] keeps secrets out of it.
//! 6. [`diagnose`]: pure functions from a trace to [`report::Finding`]s.
//! 7. [`report`]: built once, rendered many ways.
//!
//! [`exec`] is another way to a trace: from the command of a user's own training script.
//!
//! Above the journey: [`lab`] makes experiments of many runs, over one queue.
//!
//! Beside it, around real releases of engines: [`environment`] makes Python environments with pinned
//! packages, [`zoo`] holds known bugs and what to expect of them, [`lattice`] the configurations that are worth
//! trying, [`doctor`] says what a machine and a Python can run, and [`attachment`] makes a bug report of a run.
//!
//! [`job`] says whether a launcher started this process as one of several.
//!
//! Throughout: [`visible`] makes text of strangers safe to be looked at, [`console`] shows it, [`run_dir`] makes
//! and reads the files of a run, and [`document`] reads the files that people write.
//!
//! Dependencies point one way along the journey; `tests/it/journey.rs` checks it.

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
