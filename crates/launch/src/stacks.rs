//! The request for Python stacks: a signal to processes that have said that they answer it.

use nix::errno::Errno;
use nix::libc;

use super::strays::Strays;

/// Signal at which a process writes down the stacks of its threads. Launchers, schedulers and
/// libraries use those below; this one of the real-time signals is nobody's.
pub fn stack_signal() -> i32 {
    libc::SIGRTMIN() + 12
}

/// Asks the process `pid` for its stacks, if it is one of run `run` on this machine. Returns true if
/// it was asked.
pub fn ask_for_stacks(run: &str, pid: u32) -> bool {
    if !Strays::of(run).are(pid) {
        return false;
    }
    // SAFETY: it sends a signal, and touches no memory. The id was that of a process of the run
    // right before.
    Errno::result(unsafe { libc::kill(pid.cast_signed(), stack_signal()) }).is_ok()
}
