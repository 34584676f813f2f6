//! The machine and the versions with which the numbers were measured.

use std::fmt;
use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result};

use crate::libtorch;

/// A machine, and the versions of the software that ran.
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    rustc: String,
    packages: Option<String>,
}

impl Machine {
    /// The machine of this process; `packages` are the versions of Python packages, `None` if Python did not
    /// run.
    pub fn this(packages: Option<String>) -> Result<Self> {
        let cpus = read("/proc/cpuinfo")?;
        let cpu = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        Ok(Self {
            cpu: cpu.to_owned(),
            cores: available_parallelism().context("cannot count the cores")?.get(),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            rustc: output(Command::new("rustc").arg("--version"))?,
            packages,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, rustc, packages } = self;
        writeln!(f, "- Machine: {cpu}, {cores} cores, Linux {kernel}")?;
        let zprobe = env!("CARGO_PKG_VERSION");
        write!(f, "- Versions: zprobe {zprobe}, libtorch {}, {rustc}", libtorch::VERSION)?;
        if let Some(packages) = packages {
            write!(f, "; Python's: {packages}")?;
        }
        writeln!(f)
    }
}

/// The standard output of a command, without the last line feed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim_end(),
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}
