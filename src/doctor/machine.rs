//! What the machine has, apart from any Python.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use process_control::{ChildExt as _, Control as _};

use crate::spec::Gpus;

/// How long `nvidia-smi` may take; it hangs on machines whose driver does.
const NVIDIA_SMI_LIMIT: Duration = Duration::from_secs(20);

/// What the machine has; none where it does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: Option<usize>,
    /// Memory that can be had, in bytes.
    pub memory: Option<u64>,
    /// Files that one process may have open.
    pub open_files: Option<u64>,
    /// Free space of `/dev/shm`, in bytes.
    pub shared_memory: Option<u64>,
    /// The program uv.
    pub uv: Option<PathBuf>,
    /// Names of GPUs by the driver; an error is its own message.
    pub driver: Result<Vec<String>, String>,
    /// The native engine's rank program, or where it should be.
    pub native: Result<PathBuf, PathBuf>,
    /// What that program finds of CUDA; none where nobody has asked it.
    pub cuda: Option<Gpus>,
}

impl Machine {
    /// Looks at this machine; `native` is where the native engine's rank program should be.
    pub fn look(native: PathBuf) -> Self {
        Self {
            cores: available_parallelism().ok().map(usize::from),
            memory: fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(available),
            open_files: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
            shared_memory: statvfs("/dev/shm")
                .ok()
                .map(|shm| shm.blocks_available() * shm.fragment_size()),
            uv: which::which("uv").ok(),
            driver: driver(),
            native: if native.is_file() { Ok(native) } else { Err(native) },
            cuda: None,
        }
    }
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// GPUs by `nvidia-smi`; none where there is no such program.
fn driver() -> Result<Vec<String>, String> {
    let Ok(program) = which::which("nvidia-smi") else { return Ok(Vec::new()) };
    let output = Command::new(program)
        .args(["--query-gpu=name", "--format=csv,noheader"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|child| {
            child
                .controlled_with_output()
                .time_limit(NVIDIA_SMI_LIMIT)
                .terminate_for_timeout()
                .wait()
        })
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
}
