//! `cargo xtask test`

use std::process::Command;

use anyhow::Result;

use super::build;
use crate::cargo::{self, cargo};
use crate::host::Host;
use crate::libtorch::Libtorch;
use crate::steps::Steps;

/// Checks and tests everything, the quick steps first.
///
/// Everything native is built in release, so that torch-sys is compiled only once.
pub fn test(full: bool) -> Result<()> {
    let runner = Runner { nextest: cargo::has_nextest(), full };
    let mut steps = Steps::new(8);

    steps.step("formatting", || cargo::run(cargo(&["fmt", "--all", "--check"])?))?;
    steps.step("clippy, without libtorch", || {
        cargo::run(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?)
    })?;
    steps.step(&format!("tests without libtorch, with {}", runner.name()), || {
        runner.run(&["--workspace"], |command| command)?;
        runner.doc_tests()
    })?;

    let libtorch = steps.step("libtorch", || Libtorch::locate(&Host::from_env()))?;
    let native = |args: &[&str]| cargo(args).map(|command| libtorch.apply(command));
    steps.step("clippy, native", || {
        cargo::run(native(&[
            "clippy",
            "--release",
            "--package",
            "zprobe",
            "--features",
            "native",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ])?)
    })?;
    steps.step("documentation", || {
        let mut command = native(&[
            "doc",
            "--release",
            "--workspace",
            "--features",
            "native",
            "--no-deps",
            "--document-private-items",
        ])?;
        command.env("RUSTDOCFLAGS", "-D warnings");
        cargo::run(command)
    })?;
    steps.step("release build", || build::release(&libtorch))?;
    steps.step(&format!("native tests, with {}", runner.name()), || {
        let args = ["--release", "--package", "zprobe", "--features", "native"];
        runner.run(&args, |command| libtorch.apply(command))
    })?;

    steps.finish();
    Ok(())
}

/// How tests are run.
struct Runner {
    /// With cargo-nextest, otherwise with `cargo test`.
    nextest: bool,
    /// Over the full grids.
    full: bool,
}

impl Runner {
    /// What runs the tests.
    fn name(&self) -> &'static str {
        if self.nextest { "cargo nextest" } else { "cargo test (cargo-nextest is not installed)" }
    }

    /// Runs the tests that `args` select, in the environment that `prepare` adds.
    fn run(&self, args: &[&str], prepare: impl FnOnce(Command) -> Command) -> Result<()> {
        let runner: &[&str] = if self.nextest { &["nextest", "run"] } else { &["test"] };
        let mut command = prepare(cargo(&[runner, args].concat())?);
        if self.full {
            command.env("ZPROBE_TEST_FULL", "1");
        }
        cargo::run(command)
    }

    /// Runs the examples in the documentation, which only nextest leaves out.
    fn doc_tests(&self) -> Result<()> {
        if self.nextest { cargo::run(cargo(&["test", "--workspace", "--doc"])?) } else { Ok(()) }
    }
}
