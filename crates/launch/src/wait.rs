//! Waits for events on descriptors, for signals, and for a point in time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::signals::Signals;

/// The events that woke the launcher up. All fields are empty if the wait timed out.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// True if the user wants the run to stop.
    pub(super) interrupted: bool,
    /// True if a child process may have ended.
    pub(super) child: bool,
    /// The indices of the descriptors that are closed, or on which one of their events has occurred.
    pub(super) descriptors: Vec<usize>,
}

/// Sleeps until an event occurs, but not beyond `until`. Each descriptor comes with its events. Without `signals`,
/// the function does not check for interrupts and for ends of child processes.
pub(super) fn wait<'a>(
    descriptors: impl Iterator<Item = Option<(BorrowedFd<'a>, PollFlags)>>,
    signals: Option<&Signals>,
    until: Instant,
) -> io::Result<Ready> {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut indices = Vec::new();
    let mut fds: Vec<_> = signals
        .iter()
        .flat_map(|signals| [readable(signals.interrupted()), readable(signals.child())])
        .collect();
    let of_signals = fds.len();
    for (index, descriptor) in descriptors.enumerate() {
        if let Some((fd, events)) = descriptor {
            indices.push(index);
            fds.push(PollFd::new(fd, events));
        }
    }
    match poll(&mut fds, timeout(until)) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(Ready::default()),
        Err(err) => return Err(err.into()),
    }
    let happened = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
    Ok(Ready {
        interrupted: of_signals > 0 && happened(&fds[0]),
        child: of_signals > 0 && happened(&fds[1]),
        descriptors: indices
            .into_iter()
            .zip(&fds[of_signals..])
            .filter(|(_, fd)| happened(fd))
            .map(|(index, _)| index)
            .collect(),
    })
}

/// Returns the time left until `until`, rounded up so that `until` has passed when `poll` times out.
pub(super) fn timeout(until: Instant) -> PollTimeout {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return PollTimeout::ZERO;
    }
    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
}
