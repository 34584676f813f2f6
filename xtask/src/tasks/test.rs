//! The task `cargo xtask test`.

use std::env;
use std::panic;
use std::path::Path;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, ensure};

use super::build::{self, EVERYTHING};
use crate::browser;
use crate::budget;
use crate::cargo::{self, cargo};
use crate::chaos;
use crate::dependencies::{self, Advisories};
use crate::dist;
use crate::engines::{self, Environments};
use crate::host::Host;
use crate::integrations;
use crate::launchers;
use crate::libtorch::Libtorch;
use crate::steps::Steps;
use crate::{tools, workspace};

/// Checks and tests everything, the quick steps first. Downloads run in parallel with earlier steps.
pub fn test(full: bool) -> Result<()> {
    let runner = Runner { nextest: cargo::has_nextest(), full };
    let mut steps = Steps::new(20);
    steps.step("formatting", || cargo::run(cargo("fmt --all --check")?))?;
    steps.step("lines of each crate", budget::check)?;
    let host = Host::from_env();
    thread::scope(|scope| {
        let libtorch = scope.spawn(|| Libtorch::locate(&host));
        let tools =
            scope.spawn(|| tools::prepare(&host, &workspace::target_dir()?, &tools::EVERYDAY));
        let dist_tools =
            scope.spawn(|| tools::prepare(&host, &workspace::target_dir()?, &tools::DIST));
        // Both use apt-get, which only one process can run at a time.
        let of_debian = scope.spawn(|| Ok((browser::prepare(&host), launchers::prepare(&host))));

        let perfetto = scope.spawn(|| browser::perfetto(&host, &workspace::target_dir()?));

        let advisories = steps.step("licences, sources and advisories of dependencies", || {
            dependencies::check(&host, &result_of(tools)?)
        })?;
        if advisories == Advisories::OutOfReach {
            steps.skip("known vulnerabilities: the advisory database cannot be fetched from here");
        }
        let libtorch = steps.step("libtorch", || result_of(libtorch))?;
        steps.step("clippy", || {
            // clippy runs with the native engine, although the wheel is built without it: no code in `src` is
            // only for a build without that engine.
            let clippy = cargo(&format!("clippy {EVERYTHING} --all-targets -- -D warnings"))?;
            cargo::run(libtorch.apply(clippy))
        })?;
        steps.step("release build", || build::release(&libtorch))?;
        let engines = scope.spawn(|| {
            let engines = Environments::prepare()?;
            let python = engines.python()?;
            Ok((engines, python))
        });
        // The documentation keeps one core busy, and leaves the other to the campaign.
        let mut documentation = libtorch.apply(documentation()?);
        let documentation = scope.spawn(move || Ok(documentation.output()?));
        steps.step("a short fault campaign", || chaos::run(&chaos::Options::short()))?;
        steps.step("documentation", || {
            let output = result_of(documentation)?;
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            ensure!(output.status.success(), "`cargo doc` failed; see the messages above");
            Ok(())
        })?;
        steps.step(&format!("tests, with {}", runner.name()), || {
            cargo::run(libtorch.apply(runner.tests(EVERYTHING)?))?;
            runner.doc_tests(&libtorch)
        })?;
        let (launchers, perfetto) = steps.step("Chromium and Perfetto", || {
            let (chromium, launchers) = result_of(of_debian)?;
            chromium?;
            Ok((launchers, result_of(perfetto)?))
        })?;
        steps.step(
            &format!("tests of reports and traces in Chromium, with {}", runner.name()),
            || {
                let selection = format!("{EVERYTHING} --test browser");
                let mut tests = libtorch.apply(runner.ignored_tests(&selection)?);
                tests.env("ZPROBE_TEST_PERFETTO", &perfetto);
                cargo::run(tests)
            },
        )?;
        let (engines, python) =
            steps.step("a Python environment with DeepSpeed", || result_of(engines))?;
        let others = engines.clone();
        let others = scope.spawn(move || others.make_others());
        steps.step(&format!("tests of real engines, with {}", runner.name()), || {
            // Among the native engine's ignored tests only the comparison with other engines runs: the rest
            // needs a GPU.
            for selection in ["--test engines", "--test native every_engine_ends"] {
                let tests = runner.ignored_tests(&format!("{EVERYTHING} {selection}"))?;
                let mut tests = libtorch.apply(tests);
                tests.env("ZPROBE_TEST_PYTHON", &python);
                cargo::run(tests)?;
            }
            Ok(())
        })?;
        steps.step("more Python environments", || result_of(others))?;
        steps.step(&format!("pages as they are on the screen, with {}", runner.name()), || {
            let tests =
                runner.ignored_tests(&format!("{EVERYTHING} --test installed screens::"))?;
            cargo::run(engines.apply(libtorch.apply(tests)))
        })?;
        runner.under_launchers(&mut steps, launchers, &libtorch, &python)?;
        let dist = steps.step("wheels and archive", || {
            result_of(dist_tools)?;
            dist::build(&host, &workspace::rank_program()?, full)
        })?;
        steps.step(&format!("tests of what is installed, with {}", runner.name()), || {
            let tests =
                runner.ignored_tests(&format!("{EVERYTHING} --test installed install::"))?;
            let mut tests = libtorch.apply(tests);
            tests.env("ZPROBE_TEST_DIST", &dist);
            tests.env("ZPROBE_TEST_PYTHON", engines.python_with(engines::WITH_BUG)?);
            cargo::run(engines.apply(tests))
        })?;
        steps.step("the action, the hook of pre-commit, the plugin for pytest", || {
            integrations::test(&engines, full)
        })?;
        steps.step("known bugs of real releases", || engines.zoo(full))
    })?;

    steps.finish();
    Ok(())
}

/// Runs the tests that need no real engine, for a quick check after a small change.
pub fn quick() -> Result<()> {
    let runner = Runner { nextest: cargo::has_nextest(), full: false };
    let mut steps = Steps::new(3);
    steps.step("formatting", || cargo::run(cargo("fmt --all --check")?))?;
    steps.step("lines of each crate", budget::check)?;
    let libtorch = Libtorch::locate(&Host::from_env())?;
    steps.step(&format!("unit tests and tests/it, with {}", runner.name()), || {
        let tests = runner.tests(&format!("{EVERYTHING} --lib --bins --test it"))?;
        cargo::run(libtorch.apply(tests))
    })?;
    steps.finish();
    Ok(())
}

/// Prepares the requirements of the tests under launchers, and runs the tests.
pub fn launchers(full: bool) -> Result<()> {
    let runner = Runner { nextest: cargo::has_nextest(), full };
    let mut steps = Steps::new(4);
    let host = Host::from_env();
    let libtorch = steps.step("libtorch", || Libtorch::locate(&host))?;
    steps.step("release build", || build::release(&libtorch))?;
    let python =
        steps.step("a Python environment with DeepSpeed", || Environments::prepare()?.python())?;
    runner.under_launchers(&mut steps, launchers::prepare(&host), &libtorch, &python)?;
    steps.finish();
    Ok(())
}

/// The result of work that ran in parallel with other steps.
fn result_of<T>(work: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    work.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// The command that documents all items, private ones too, and fails on any warning.
fn documentation() -> Result<Command> {
    let mut command = cargo(&format!("doc --no-deps --document-private-items {EVERYTHING}"))?;
    command.env("RUSTDOCFLAGS", "-D warnings");
    Ok(command)
}

/// The way in which tests are run.
struct Runner {
    /// True for cargo-nextest, false for `cargo test`.
    nextest: bool,
    /// True for tests over every seed.
    full: bool,
}

impl Runner {
    /// The name of the program that runs the tests, for a step's title.
    fn name(&self) -> &'static str {
        if self.nextest { "cargo nextest" } else { "cargo test (cargo-nextest is not installed)" }
    }

    /// The command for the tests that `selection` selects.
    fn tests(&self, selection: &str) -> Result<Command> {
        let runner = if self.nextest { "nextest run" } else { "test" };
        let mut command = cargo(&format!("{runner} {selection}"))?;
        // Half as many threads again as cores: many tests wait for a timeout or for another process.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for name in ["NEXTEST_TEST_THREADS", "RUST_TEST_THREADS"] {
            if env::var_os(name).is_none() {
                command.env(name, (cores + cores / 2).to_string());
            }
        }
        if self.full {
            command.env("ZPROBE_TEST_FULL", "1");
        }
        Ok(command)
    }

    /// The command for the tests of `selection` that need more than the repository.
    fn ignored_tests(&self, selection: &str) -> Result<Command> {
        let ignored = if self.nextest { "--run-ignored only" } else { "-- --ignored" };
        self.tests(&format!("{selection} {ignored}"))
    }

    /// Runs the tests under launchers. Tests of launchers that are missing, and cannot be installed, skip
    /// themselves.
    fn under_launchers(
        &self,
        steps: &mut Steps,
        launchers: Result<()>,
        libtorch: &Libtorch,
        python: &Path,
    ) -> Result<()> {
        if let Err(reason) = launchers {
            steps.skip(&format!("tests under Slurm and Open MPI: {reason:#}"));
        }
        steps.step(&format!("tests under launchers, with {}", self.name()), || {
            let tests = self.ignored_tests(&format!("{EVERYTHING} --test launchers"))?;
            let mut tests = libtorch.apply(tests);
            tests.env("ZPROBE_TEST_PYTHON", python);
            cargo::run(tests)
        })
    }

    /// Runs the examples in the documentation, which `cargo test` runs with the other tests and nextest does
    /// not.
    fn doc_tests(&self, libtorch: &Libtorch) -> Result<()> {
        if self.nextest {
            cargo::run(libtorch.apply(cargo(&format!("test {EVERYTHING} --doc"))?))
        } else {
            Ok(())
        }
    }
}
