//! Processes that left their group (`setsid`, daemons) and so outlived it.

use std::fs;
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::group::{KILL_GRACE, KILL_POLL};
use crate::trace::contract;

/// Kills the strays of a run among the launcher's children, where the kernel puts them when their
/// parent is gone. Returns those that would not die.
///
/// They are known by their environment, which a process has to go out of its way to lose.
pub(super) fn end_strays(run: &str) -> Vec<u32> {
    let mark = format!("{}={run}", contract::RUN);
    let deadline = Instant::now() + KILL_GRACE;
    let mut dying: Vec<u32> = Vec::new();
    loop {
        let mut found = children();
        found.retain(|pid| !dying.contains(pid) && is_marked(*pid, &mark));
        // The children of a stray become the launcher's before it is seen to be dead, so there is
        // nothing left once a look at them finds nothing.
        if (found.is_empty() && dying.is_empty()) || Instant::now() > deadline {
            return dying;
        }
        for &pid in &found {
            // Nobody else waits for it, so the id is still its own.
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

fn is_marked(pid: u32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
}

/// Children of this process, whichever thread they hang on.
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
