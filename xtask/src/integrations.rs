//! Tests of zprobe in other tools: the GitHub action, the pre-commit hook, the plugin for pytest.
//!
//! The tests are written in Python and run in pytest, with a Python whose DeepSpeed has a known bug: a gate
//! has to close.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};

use crate::command::run;
use crate::engines::{self, Environments};
use crate::workspace;

/// The file with the packages that the tests need in addition to the engine, with their hashes.
const REQUIREMENTS: &str = "tests/ci/requirements.txt";

/// The directory of the plugin for pytest.
pub const PLUGIN: &str = "integrations/pytest-zprobe";

/// Packages that the tests need, installed in a directory outside of the engine's environment.
struct Tools<'a> {
    environments: &'a Environments,
    full: bool,
    python: PathBuf,
    /// The directory of the packages.
    packages: PathBuf,
}

/// Runs all tests of integrations; with `full`, zprobe is built from source in the tests where users build
/// it.
pub fn test(environments: &Environments, full: bool) -> Result<()> {
    let tools = Tools {
        environments,
        full,
        python: environments.python_with(engines::WITH_BUG)?,
        packages: workspace::target_dir()?.join("integrations"),
    };
    tools.install()?;
    tools.run("mypy", &["--no-incremental"], PLUGIN)?;
    // Most of a test's time is the start of interpreters, each of which keeps one core busy.
    let workers = thread::available_parallelism().map_or(1, usize::from).to_string();
    let pytest =
        ["-p", "no:cacheprovider", "--strict-markers", "-n", &workers, "--dist", "worksteal"];
    tools.run("pytest", &pytest, PLUGIN)?;
    tools.run("pytest", &pytest, "tests/ci")
}

impl Tools<'_> {
    /// Installs the packages if other ones are installed, and the current plugin.
    fn install(&self) -> Result<()> {
        let root = workspace::root();
        let wanted = fs::read(root.join(REQUIREMENTS))
            .with_context(|| format!("cannot read {REQUIREMENTS}"))?;
        let stamp = self.packages.join("requirements.txt");
        if fs::read(&stamp).ok().as_ref() != Some(&wanted) {
            if self.packages.exists() {
                let cannot = || format!("cannot remove {}", self.packages.display());
                fs::remove_dir_all(&self.packages).with_context(cannot)?;
            }
            self.uv(&["--require-hashes", "--no-deps", "--requirement", REQUIREMENTS])?;
            fs::write(&stamp, &wanted)
                .with_context(|| format!("cannot write {}", stamp.display()))?;
        }
        self.uv(&["--no-deps", "--reinstall", PLUGIN])
    }

    /// Installs something into the directory of packages, with uv.
    fn uv(&self, what: &[&str]) -> Result<()> {
        let mut command = Command::new("uv");
        command.env("PATH", self.path()?);
        command.args(["pip", "install", "--quiet", "--python"]).arg(&self.python);
        command.arg("--target").arg(&self.packages).args(what);
        run(command.current_dir(workspace::root()))
    }

    /// Runs a Python module in a directory of the repository.
    fn run(&self, module: &str, arguments: &[&str], dir: &str) -> Result<()> {
        let mut command = Command::new(&self.python);
        command.args(["-B", "-m", module]).args(arguments);
        command.current_dir(workspace::root().join(dir));
        command.env("PATH", self.path()?);
        command.env("PYTHONPATH", &self.packages).env("ZPROBE_PROGRAM", workspace::zprobe()?);
        if self.full {
            command.env("ZPROBE_TEST_FULL", "1");
        }
        run(&mut command)
    }

    /// The `PATH` with the programs of the packages, and with uv.
    fn path(&self) -> Result<OsString> {
        let places = [self.packages.join("bin")].into_iter();
        env::join_paths(places.chain(env::split_paths(self.environments.path())))
            .context("PATH cannot be extended")
    }
}
