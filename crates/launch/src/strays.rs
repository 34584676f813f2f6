//! Stray processes, which left their process group (`setsid`, daemons) and outlived it.

use std::fs;
use std::thread;
use std::time::Instant;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::LaunchError;
use super::group::{KILL_GRACE, KILL_POLL};
use zprobe_model::trace::contract;

/// Makes the launcher the new parent of each descendant whose parent dies, so that the launcher can wait for the
/// descendant.
pub(super) fn adopt_orphans() -> Result<(), LaunchError> {
    prctl::set_child_subreaper(true)
        .map_err(LaunchError::system("the adoption of orphaned processes"))
}

/// The criteria by which strays are found among the children of the launcher. The kernel makes orphaned processes
/// children of the launcher.
///
/// Strays are recognised by an environment variable, which a process does not lose by accident. The kernel shows the
/// environment that a program was started with, so a forked process has the environment of the process that forked
/// it.
pub(super) struct Strays {
    marks: Vec<String>,
    spared: Option<u32>,
}

impl Strays {
    /// Returns the criteria for the strays of the run `run`.
    pub(super) fn of(run: &str) -> Self {
        Self { marks: vec![mark(run)], spared: None }
    }

    /// Excludes the process `pid` from the strays.
    pub(super) fn sparing(mut self, pid: u32) -> Self {
        self.spared = Some(pid);
        self
    }

    /// Adds the strays of the run `run`.
    pub(super) fn and(mut self, run: &str) -> Self {
        self.marks.push(mark(run));
        self
    }

    /// Kills the strays. Returns the ids of the strays that did not die.
    pub(super) fn end(&self) -> Vec<u32> {
        let deadline = Instant::now() + KILL_GRACE;
        let mut dying: Vec<u32> = Vec::new();
        loop {
            let mut found = children();
            found.retain(|&pid| !dying.contains(&pid) && self.are(pid));
            // The children of a stray become children of the launcher before the stray is seen to be dead. So no
            // stray is left once a search finds none.
            if (found.is_empty() && dying.is_empty()) || Instant::now() > deadline {
                return dying;
            }
            for &pid in &found {
                // Only this code waits for the stray, so its id was not reused.
                let _ = kill(to_pid(pid), Signal::SIGKILL);
            }
            dying.extend(found);
            dying.retain(|&pid| {
                waitpid(to_pid(pid), Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive)
            });
            if !dying.is_empty() {
                thread::sleep(KILL_POLL);
            }
        }
    }

    /// Returns true if the environment of the process `pid` has one of the marks.
    pub(super) fn are(&self, pid: u32) -> bool {
        if self.spared == Some(pid) {
            return false;
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|&byte| byte == 0);
        variables.any(|variable| self.marks.iter().any(|mark| mark.as_bytes() == variable))
    }
}

fn mark(run: &str) -> String {
    format!("{}={run}", contract::RUN)
}

/// Returns the ids of the children of this process, whichever of its threads started them.
fn children() -> Vec<u32> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists =
        threads.flatten().filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

fn to_pid(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}
