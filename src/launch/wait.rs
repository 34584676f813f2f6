//! The one place where the launcher sleeps.

use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::channel::Channel;
use super::signals::Signals;

/// Events that woke the launcher up; none if the time was over.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// True if the user wants the run to stop.
    pub(super) interrupted: bool,
    /// True if a host may have ended.
    pub(super) child: bool,
    /// Indices of channels that have something to receive, or are closed.
    pub(super) channels: Vec<usize>,
}

/// Sleeps until an event occurs, but not beyond `until`.
pub(super) fn wait<'a>(
    channels: impl Iterator<Item = Option<&'a Channel>>,
    signals: &Signals,
    until: Instant,
) -> io::Result<Ready> {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut indices = Vec::new();
    let mut fds = vec![readable(signals.interrupted()), readable(signals.child())];
    for (index, channel) in channels.enumerate() {
        if let Some(channel) = channel {
            indices.push(index);
            fds.push(readable(channel.as_fd()));
        }
    }
    match poll(&mut fds, timeout(until)) {
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(Ready::default()),
        Err(err) => return Err(err.into()),
    }
    let happened = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
    Ok(Ready {
        interrupted: happened(&fds[0]),
        child: happened(&fds[1]),
        channels: indices
            .into_iter()
            .zip(&fds[2..])
            .filter(|(_, fd)| happened(fd))
            .map(|(index, _)| index)
            .collect(),
    })
}

/// Time left until `until`, rounded up so that it is over when `poll` says so.
pub(super) fn timeout(until: Instant) -> PollTimeout {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return PollTimeout::ZERO;
    }
    PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
}
