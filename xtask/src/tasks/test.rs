//! `cargo xtask test`

use std::process::Command;

use anyhow::Result;

use super::build::{self, NATIVE};
use crate::browser;
use crate::cargo::{self, cargo};
use crate::chaos;
use crate::engines::Environments;
use crate::host::Host;
use crate::libtorch::Libtorch;
use crate::steps::Steps;

/// Checks and tests everything, the quick steps first.
pub fn test(full: bool) -> Result<()> {
    let runner = Runner { nextest: cargo::has_nextest(), full };
    let mut steps = Steps::new(14);

    steps.step("formatting", || cargo::run(cargo("fmt --all --check")?))?;
    steps.step("clippy, without libtorch", || {
        cargo::run(cargo("clippy --workspace --all-targets -- -D warnings")?)
    })?;
    steps.step(&format!("tests without libtorch, with {}", runner.name()), || {
        cargo::run(runner.tests("--workspace")?)?;
        runner.doc_tests()
    })?;
    let host = Host::from_env();
    steps.step("Chromium", || browser::prepare(&host))?;
    steps.step(&format!("tests of the HTML report in Chromium, with {}", runner.name()), || {
        cargo::run(runner.ignored_tests("--test browser")?)
    })?;

    let libtorch = steps.step("libtorch", || Libtorch::locate(&host))?;
    steps.step("clippy, native", || {
        let clippy = cargo(&format!("clippy {NATIVE} --all-targets -- -D warnings"))?;
        cargo::run(libtorch.apply(clippy))
    })?;
    steps.step("documentation", || {
        cargo::run(documentation("--package xtask")?)?;
        cargo::run(libtorch.apply(documentation(NATIVE)?))
    })?;
    steps.step("release build", || build::release(&libtorch))?;
    steps.step("a short fault campaign", || chaos::run(&chaos::Options::short()))?;
    steps.step(&format!("native tests, with {}", runner.name()), || {
        cargo::run(libtorch.apply(runner.tests(NATIVE)?))
    })?;
    let engines = Environments::prepare()?;
    let python = steps.step("a Python environment with DeepSpeed", || engines.python())?;
    steps.step(&format!("tests of real engines, with {}", runner.name()), || {
        // Of the native engine's own tests only the comparison with others: the rest needs a GPU.
        for selection in ["--test engines", "--test native every_engine_ends"] {
            let mut tests = libtorch.apply(runner.ignored_tests(&format!("{NATIVE} {selection}"))?);
            tests.env("ZPROBE_TEST_PYTHON", &python);
            cargo::run(tests)?;
        }
        Ok(())
    })?;
    steps.step("known bugs of real releases", || engines.zoo(full))?;

    steps.finish();
    Ok(())
}

/// The command that documents a package, private items too, and fails on any warning.
fn documentation(selection: &str) -> Result<Command> {
    let mut command = cargo(&format!("doc --no-deps --document-private-items {selection}"))?;
    command.env("RUSTDOCFLAGS", "-D warnings");
    Ok(command)
}

/// How tests are run.
struct Runner {
    /// With cargo-nextest, otherwise with `cargo test`.
    nextest: bool,
    /// Over every seed.
    full: bool,
}

impl Runner {
    /// What runs the tests.
    fn name(&self) -> &'static str {
        if self.nextest { "cargo nextest" } else { "cargo test (cargo-nextest is not installed)" }
    }

    /// The command for the tests that `selection` names.
    fn tests(&self, selection: &str) -> Result<Command> {
        let runner = if self.nextest { "nextest run" } else { "test" };
        let mut command = cargo(&format!("{runner} {selection}"))?;
        if self.full {
            command.env("ZPROBE_TEST_FULL", "1");
        }
        Ok(command)
    }

    /// The command for those tests of `selection` that need more than the repository.
    fn ignored_tests(&self, selection: &str) -> Result<Command> {
        let ignored = if self.nextest { "--run-ignored only" } else { "-- --ignored" };
        self.tests(&format!("{selection} {ignored}"))
    }

    /// Runs the examples in the documentation, which only nextest leaves out.
    fn doc_tests(&self) -> Result<()> {
        if self.nextest { cargo::run(cargo("test --workspace --doc")?) } else { Ok(()) }
    }
}
