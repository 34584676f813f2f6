//! The same runs under real launchers: torchrun with two agents, Slurm with two nodes, and Open MPI. Each
//! leaves the report that a plain run leaves, and exits like it. `scripts` has scripts of the user's on several
//! machines.
//!
//! The tests need libtorch, an interpreter with torch and DeepSpeed beside whose program `torchrun` is
//! (`ZPROBE_TEST_PYTHON`), and Debian's slurm-wlm, munge and openmpi-bin: `cargo xtask test --launchers`
//! installs all of it. A launcher that is not there is skipped, with the reason. `ZPROBE_TEST_FULL` makes
//! them run every engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_macros, reason = "what is skipped is said")]

#[path = "../support/interpreter.rs"]
mod interpreter;
mod link;
mod machines;
mod mpi;
mod runs;
mod scripts;
mod slurm;
mod torchrun;
