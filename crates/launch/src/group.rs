//! A process group that the launcher started, and the guarantee that the group is ended.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use zprobe_model::trace::Outcome;

/// The time that the kernel may take to end processes after SIGKILL. Only a process inside a device driver needs more
/// than an instant.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(5);

/// The interval between two checks of the killed processes within [`KILL_GRACE`].
pub(super) const KILL_POLL: Duration = Duration::from_millis(1);

/// A process group: the group leader, whose process id is the id of the group, and its descendants.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    /// The process id of the group leader. The leader is a child of the launcher, whichever process forked it, and
    /// the kernel does not reuse the id before the launcher has waited for the leader.
    leader: Pid,
    /// The outcome of the group leader; set once the launcher has waited for it.
    outcome: Option<Outcome>,
    killed: bool,
}

impl ProcessGroup {
    /// Takes charge of the process group of the process `leader`. The leader is a child of the launcher, and no other
    /// code waits for it.
    pub(super) fn new(leader: u32) -> Self {
        Self { leader: Pid::from_raw(leader.cast_signed()), outcome: None, killed: false }
    }

    /// Returns the process id of the group leader.
    pub(super) fn pid(&self) -> u32 {
        self.leader.as_raw().cast_unsigned()
    }

    /// Returns the outcome of the group leader, or `None` while the leader runs. Once the leader has ended, the rest
    /// of its group is killed.
    pub(super) fn outcome(&mut self) -> Option<Outcome> {
        if self.outcome.is_none() && self.leader_is_dead() {
            // The id of a dead leader is not reused before the launcher has waited for the leader, so the signal hits
            // no other process.
            self.signal();
            self.outcome = wait(self.leader).map(|status| self.read(status));
        }
        self.outcome
    }

    /// Kills all processes of the group.
    pub(super) fn kill(&mut self) {
        if self.outcome().is_none() {
            self.killed = true;
            self.signal();
        }
    }

    fn signal(&self) {
        // `killpg` fails only if no process of the group is left.
        let _ = killpg(self.leader, Signal::SIGKILL);
    }

    fn leader_is_dead(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // An error means that a real-time signal ended the leader: nix has no name for such signals.
        !matches!(waitid(Id::Pid(self.leader), flags), Ok(WaitStatus::StillAlive))
    }

    fn read(&self, status: ExitStatus) -> Outcome {
        match (status.code(), status.signal()) {
            (Some(code), _) => Outcome::Code(code),
            (None, Some(signal)) if self.killed && signal == Signal::SIGKILL as i32 => {
                Outcome::Reaped
            }
            (None, signal) => Outcome::Signal(signal.unwrap_or_default()),
        }
    }

    /// Waits for the dead group members that the launcher inherited from a dead parent, and returns true if the group
    /// is empty. A member that SIGKILL did not end had died before the group was killed; its outcome is added to
    /// `ended`.
    fn reap(&mut self, ended: &mut Vec<(u32, Outcome)>) -> bool {
        if self.outcome().is_none() {
            return false;
        }
        let members = Pid::from_raw(-self.leader.as_raw());
        loop {
            let (pid, outcome) = match waitpid(members, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return false,
                Ok(WaitStatus::Exited(pid, code)) => (pid, Outcome::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if signal != Signal::SIGKILL => {
                    (pid, Outcome::Signal(signal as i32))
                }
                Err(Errno::ECHILD) => return true,
                _ => continue,
            };
            ended.push((pid.as_raw().unsigned_abs(), outcome));
        }
    }
}

/// Returns the outcome of the child `pid`, which has not been waited for, or `None` while the child runs.
pub(super) fn outcome_of(pid: Pid) -> Option<Outcome> {
    let status = wait(pid)?;
    let signal = || Outcome::Signal(status.signal().unwrap_or_default());
    Some(status.code().map_or_else(signal, Outcome::Code))
}

/// Waits for a dead child. nix's `waitpid` has no name for real-time signals, and would lose the outcome of a child
/// that such a signal ended.
fn wait(child: Pid) -> Option<ExitStatus> {
    let mut status = 0;
    // SAFETY: waitpid writes only to `status`.
    let pid = unsafe { libc::waitpid(child.as_raw(), &raw mut status, libc::WNOHANG) };
    (pid == child.as_raw()).then(|| ExitStatus::from_raw(status))
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.outcome.is_none() && !self.killed {
            end(&mut [self], &mut Vec::new());
        }
    }
}

/// Kills process groups and waits until they are empty, for at most [`KILL_GRACE`]. Members that SIGKILL did not end
/// are added to `ended`. Returns the ids of the leaders of groups that are still not empty.
pub(super) fn end(groups: &mut [&mut ProcessGroup], ended: &mut Vec<(u32, Outcome)>) -> Vec<u32> {
    for group in groups.iter_mut() {
        group.kill();
    }
    let deadline = Instant::now() + KILL_GRACE;
    loop {
        let mut left = Vec::new();
        for group in groups.iter_mut() {
            if !group.reap(ended) {
                left.push(group.pid());
            }
        }
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        thread::sleep(KILL_POLL);
    }
}
