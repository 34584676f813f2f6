//! Facts about the machine that need no Python: system, memory, GPUs and tools.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::sys::utsname::uname;

use crate::answer::output_within;
use zprobe_model::spec::Gpus;

/// The file in which the NVIDIA kernel module states its version.
const DRIVER_VERSION: &str = "/proc/driver/nvidia/version";

/// The marker files that Docker and Podman put into containers.
const CONTAINER_MARKS: &[&str] = &["/.dockerenv", "/run/.containerenv"];

/// The time limit of `nvidia-smi`, which hangs on machines whose driver hangs.
const NVIDIA_SMI_LIMIT: Duration = Duration::from_secs(20);

/// Facts about the machine; a fact is `None` where the system does not report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    /// The name and version of the operating system, as people read them.
    pub system: Option<String>,
    /// The release of the kernel, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// True if this process runs in a container of Docker or Podman.
    pub container: bool,
    /// The number of cores that this process may use.
    pub cores: Option<usize>,
    /// The memory that a new process can get, in bytes.
    pub memory: Option<u64>,
    /// The number of files that a process may have open (the soft limit).
    pub open_files: Option<u64>,
    /// The free space of `/dev/shm`, in bytes.
    pub shared_memory: Option<u64>,
    /// The path of the program uv; `None` if uv is not on `PATH`.
    pub uv: Option<PathBuf>,
    /// The names of the GPUs as `nvidia-smi` lists them, or its error message.
    pub driver: Result<Vec<String>, String>,
    /// The version of the GPU driver's kernel module.
    pub driver_version: Option<String>,
    /// The path of the native engine's rank program, or the reason why there is none.
    pub native: Result<PathBuf, String>,
    /// The GPUs and CUDA libraries that the native engine's rank program finds; `None` where the program was not
    /// asked.
    pub cuda: Option<Gpus>,
}

impl MachineFacts {
    /// Collects the facts about this machine; `native` is the native engine's rank program.
    pub fn look(native: Result<PathBuf, String>) -> Self {
        Self {
            system: fs::read_to_string("/etc/os-release").ok().as_deref().and_then(pretty_name),
            kernel: uname().ok().map(|name| name.release().to_string_lossy().into_owned()),
            container: CONTAINER_MARKS.iter().any(|mark| Path::new(mark).exists()),
            cores: available_parallelism().ok().map(usize::from),
            memory: fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(available),
            open_files: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
            shared_memory: statvfs("/dev/shm")
                .ok()
                .map(|shm| shm.blocks_available() * shm.fragment_size()),
            uv: which::which("uv").ok(),
            driver: driver(),
            driver_version: fs::read_to_string(DRIVER_VERSION)
                .ok()
                .as_deref()
                .and_then(module_version),
            native,
            cuda: None,
        }
    }
}

/// The value of `PRETTY_NAME` in `/etc/os-release`, without its quotes.
fn pretty_name(release: &str) -> Option<String> {
    let line = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches(['"', '\'']).to_owned())
}

/// The driver version in `/proc/driver/nvidia/version`: the first word of the first line that begins with a digit and
/// has a point.
fn module_version(text: &str) -> Option<String> {
    let words = text.lines().next()?.split_whitespace();
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    words.filter(is_version).map(str::to_owned).next()
}

/// The value of `MemAvailable` in `/proc/meminfo`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// The names of the GPUs as `nvidia-smi` lists them; an empty list where that program is not installed.
fn driver() -> Result<Vec<String>, String> {
    let Ok(program) = which::which("nvidia-smi") else { return Ok(Vec::new()) };
    let mut command = Command::new(program);
    command.args(["--query-gpu=name", "--format=csv,noheader"]);
    let output = output_within(&mut command, NVIDIA_SMI_LIMIT)
        .map_err(|error| format!("nvidia-smi: {error}"))?
        .ok_or_else(|| format!("nvidia-smi: no answer within {} s", NVIDIA_SMI_LIMIT.as_secs()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        Ok(text.lines().map(str::to_owned).collect())
    } else {
        Err(format!("nvidia-smi: {}", text.lines().next().unwrap_or("failed")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_can_be_had_and_not_what_is_free() {
        let meminfo = "MemTotal: 100 kB\nMemFree:  10 kB\nMemAvailable:   64 kB\n";
        assert_eq!(available(meminfo), Some(64 * 1024));
        assert_eq!(available("MemTotal: 100 kB\n"), None);
    }

    #[test]
    fn systems_and_drivers_are_called_as_they_call_themselves() {
        let release = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(pretty_name(release).as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        let version =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release\nGCC";
        assert_eq!(module_version(version).as_deref(), Some("580.95.05"));
    }
}
