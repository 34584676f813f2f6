//! Processes that left their group (`setsid`, daemons) and so outlived it.

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

/// Makes the children that a dying process leaves behind children of the launcher, which can then
/// wait for them.
pub(super) fn adopt_orphans() -> Result<(), LaunchError> {
    prctl::set_child_subreaper(true)
        .map_err(LaunchError::system("the adoption of orphaned processes"))
}

/// Criteria for strays among the children of the launcher, which the kernel gives it when their
/// parent is gone.
///
/// Strays are recognised by a variable of their environment, which a process has to go out of its
/// way to lose. The kernel shows the environment that a program was started with: a forked process
/// has that of the process that forked it.
pub(super) struct Strays {
    marks: Vec<String>,
    spared: Option<u32>,
}

impl Strays {
    /// Criteria for the strays of run `run`.
    pub(super) fn of(run: &str) -> Self {
        Self { marks: vec![mark(run)], spared: None }
    }

    /// Excludes the process `pid`.
    pub(super) fn sparing(mut self, pid: u32) -> Self {
        self.spared = Some(pid);
        self
    }

    /// Adds the strays of run `run`.
    pub(super) fn and(mut self, run: &str) -> Self {
        self.marks.push(mark(run));
        self
    }

    /// Kills the strays. Returns the ids of those that did not die.
    pub(super) fn end(&self) -> Vec<u32> {
        let deadline = Instant::now() + KILL_GRACE;
        let mut dying: Vec<u32> = Vec::new();
        loop {
            let mut found = children();
            found.retain(|&pid| !dying.contains(&pid) && self.are(pid));
            // The children of a stray become the launcher's before it is seen to be dead, so there
            // is nothing left once a look at them finds nothing.
            if (found.is_empty() && dying.is_empty()) || Instant::now() > deadline {
                return dying;
            }
            for &pid in &found {
                // Nothing else waits for it, so its id was not reused.
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

    /// Returns true if the process `pid` is one of the run, by its environment.
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

/// Ids of the children of this process, whichever of its threads started them.
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
