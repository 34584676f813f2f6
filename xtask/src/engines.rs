//! The Python environments in which real engines are tested.
//!
//! `zprobe provision` makes the environments, with the uv of [`tools`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::run;
use crate::host::Host;
use crate::planted_commits::Repository;
use crate::{tools, workspace};

/// The releases that the tests of engines and of scripts run with.
pub const TESTED: &[&str] = &[
    "torch==2.11.0",
    "deepspeed==0.19.8",
    "transformers==5.23.0",
    "accelerate==1.15.0",
    "lightning==2.6.6",
    "peft==0.21.2",
    "trl==1.16.0",
    "megatron-core==0.16.1",
    "tensorboard==2.21.0",
];

/// A release of DeepSpeed that leaks the boundary microbatch, with the torch that the native engine is built
/// for.
pub const WITH_BUG: &[&str] = &["torch==2.11.0", "deepspeed==0.18.9"];

/// The release of DeepSpeed in [`TESTED`].
const TESTED_DEEPSPEED: &str = "0.19.8";

/// The rows of the zoo that represent all rows in an everyday test, each with one release: a fixed bug, and a
/// bug that the tested release still has. The bisection after these rows finds another fixed bug.
pub const EVERYDAY_ZOO: &[(&str, &str)] =
    &[("cpu-split-view", "deepspeed==0.18.9"), ("stage3-stale-gradient", "deepspeed==0.19.8")];

/// The environments for the tests of pages and of installed files, in addition to the environment of
/// [`TESTED`].
const OTHERS: [&[&str]; 2] = [WITH_BUG, &["torch==2.11.0", "deepspeed==0.19.8"]];

/// The cache of the environments, and a `PATH` that has uv to make them.
#[derive(Clone)]
pub struct Environments {
    cache: PathBuf,
    path: OsString,
}

impl Environments {
    /// Makes uv ready.
    pub fn prepare() -> Result<Self> {
        let target = workspace::target_dir()?;
        let tools = tools::prepare(&Host::from_env(), &target, &tools::EVERYDAY)?;
        let inherited = env::var_os("PATH").unwrap_or_default();
        let places = [tools].into_iter().chain(env::split_paths(&inherited));
        let path = env::join_paths(places).context("PATH cannot be extended")?;
        let cache = env::var_os("ZPROBE_CACHE_DIR").map_or(target.join("engines"), PathBuf::from);
        Ok(Self { cache, path })
    }

    /// The interpreter of the environment that the tests of engines run with.
    pub fn python(&self) -> Result<PathBuf> {
        self.python_with(TESTED)
    }

    /// Makes the environments of later steps, which find them in the cache.
    pub fn make_others(&self) -> Result<()> {
        OTHERS.iter().try_for_each(|packages| self.python_with(packages).map(drop))
    }

    /// The interpreter of an environment with these packages.
    pub fn python_with(&self, packages: &[&str]) -> Result<PathBuf> {
        let output = self
            .zprobe()?
            .arg("provision")
            .args(packages)
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start zprobe")?;
        ensure!(output.status.success(), "zprobe provision failed; see the messages above");
        let text = String::from_utf8(output.stdout).context("the printed path is not UTF-8")?;
        Ok(Path::new(text.trim()).to_owned())
    }

    /// Runs all rows of the zoo, or only [`EVERYDAY_ZOO`] and two bisections.
    pub fn zoo(&self, full: bool) -> Result<()> {
        if full {
            return run(self.zprobe()?.arg("zoo").arg("--out").arg(self.runs()?));
        }
        for (row, release) in EVERYDAY_ZOO {
            run(self
                .zprobe()?
                .args(["zoo", row, "--release", release, "--out"])
                .arg(self.runs()?))?;
        }
        self.bisect()?;
        self.bisect_commits()
    }

    /// Bisects two releases, the second of which lacks the bug.
    fn bisect(&self) -> Result<()> {
        let output = self
            .zprobe()?
            .args(["bisect", "--engine", "deepspeed", "--stage", "1", "--ga", "4", "--fixed"])
            .args(["--package", "deepspeed", "--bad", "0.18.9", "--good", "0.19.0", "--out"])
            .arg(self.runs()?)
            .stderr(Stdio::inherit())
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success()
                && said.starts_with("deepspeed 0.19.0 is the first release without ZP101"),
            "zprobe bisect did not find 0.19.0: {said}"
        );
        Ok(())
    }

    /// Bisects commits of the tested release; one commit plants a bug, and one cannot be built.
    fn bisect_commits(&self) -> Result<()> {
        let (python, runs) = (self.python()?, self.runs()?);
        let repository = Repository::of_engine(&python, TESTED_DEEPSPEED, &runs.join("planted"))?;
        let output = self
            .zprobe()?
            .args(["bisect", "--engine", "deepspeed", "--ga", "3", "--dtype", "fp32"])
            .args(["--package", "deepspeed", "--good", TESTED_DEEPSPEED, "--bad", "main"])
            .args(["--output-format", "json", "--git"])
            .arg(repository.dir())
            .arg("--out")
            .arg(runs.join("bisect"))
            .stderr(Stdio::inherit())
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "zprobe bisect --git failed: {said}");
        repository.check(&said)
    }

    /// The directory for runs, which is removed if it exists.
    fn runs(&self) -> Result<PathBuf> {
        let runs = workspace::target_dir()?.join("zoo");
        if runs.exists() {
            std::fs::remove_dir_all(&runs)
                .with_context(|| format!("cannot remove {}", runs.display()))?;
        }
        Ok(runs)
    }

    /// The command `zprobe`, with this cache for its environments.
    pub fn zprobe(&self) -> Result<Command> {
        Ok(self.apply(Command::new(workspace::zprobe()?)))
    }

    /// The command, with this cache for zprobe's environments, and with uv to make them.
    pub fn apply(&self, mut command: Command) -> Command {
        command.env("PATH", &self.path).env("ZPROBE_CACHE_DIR", &self.cache);
        command
    }

    /// The value of `PATH` with uv on it.
    pub fn path(&self) -> &OsStr {
        &self.path
    }
}
