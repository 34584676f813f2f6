//! Runs of `zprobe run` under real launchers: torchrun with two agents, Slurm with two nodes, and Open MPI. Each run
//! leaves the report of a plain run, and has its exit code. `scripts` has users' scripts on several machines.
//!
//! The tests need libtorch, an interpreter with torch and DeepSpeed next to which `torchrun` is installed
//! (`ZPROBE_TEST_PYTHON`), and Debian's slurm-wlm, munge and openmpi-bin: `cargo xtask test --launchers`
//! installs all of them. A missing launcher is skipped, with the reason. With `ZPROBE_TEST_FULL` the tests
//! run every engine.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_macros, reason = "a skipped test is printed")]

#[path = "../support/interpreter.rs"]
mod interpreter;
mod link;
mod machines;
mod mpi;
mod runs;
mod scripts;
mod slurm;
mod torchrun;
