//! The processes of a case, recognised by an environment variable that they inherit from the first process.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Case;

/// The name of the variable that marks the processes of a case.
pub const MARK: &str = "CHAOS_CASE";

/// The longest time until a process that is no longer needed ends; only a process that hangs reaches this
/// limit.
const PATIENCE: Duration = Duration::from_secs(30);

impl Case {
    /// The running processes of this case, in the order of their ids.
    pub fn processes(&self) -> Vec<Pid> {
        let wanted = format!("{MARK}={}", self.mark);
        let mut found: Vec<Pid> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid: &i32| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|it| it == wanted.as_bytes())
            })
            .map(Pid::from_raw)
            .collect();
        found.sort_unstable();
        found
    }

    /// Fails if a process of this case does not end by itself, and kills that process.
    pub fn nothing_is_left(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let names: Vec<String> = left.iter().map(|pid| describe(*pid)).collect();
                for pid in left {
                    // The process may have ended by itself in between.
                    let _ = kill(pid, Signal::SIGKILL);
                }
                bail!("processes are left: {}", names.join("; "));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The command line of a process.
fn describe(pid: Pid) -> String {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned()
}
