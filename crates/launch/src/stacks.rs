//! Requests Python stacks with a signal. Only processes that have announced that they handle the signal receive it.

use nix::errno::Errno;
use nix::libc;

use super::strays::Strays;

/// Returns the signal on which a process writes down the stacks of its threads. Launchers, schedulers and libraries use
/// lower real-time signals, and do not use this signal.
pub fn stack_signal() -> i32 {
    libc::SIGRTMIN() + 12
}

/// Asks the process `pid` for its stacks if the process belongs to the run `run` on this machine. Returns true if the
/// signal was sent.
pub fn ask_for_stacks(run: &str, pid: u32) -> bool {
    if !Strays::of(run).are(pid) {
        return false;
    }
    // SAFETY: the call sends a signal and touches no memory. The process with this id was checked to belong to the
    // run right before.
    Errno::result(unsafe { libc::kill(pid.cast_signed(), stack_signal()) }).is_ok()
}
