//! The host channel: the channel from a host that forks ranks, with the checker of its records.

use super::channel::Channel;
use super::line_checker::{LineChecker, excerpt};
use zprobe_model::trace::{Record, Violation};

/// The channel from a host that forks ranks, with the checker of the host's records.
pub(super) struct HostChannel {
    pub(super) channel: Channel,
    pub(super) checker: LineChecker,
}

/// A line on the host channel that is not the host's next valid record.
pub(super) struct HostViolation {
    pub(super) violation: Violation,
    /// The start of the invalid line, as the trace stores it.
    pub(super) line: String,
}

impl HostChannel {
    /// Returns the next record that was received from the host.
    pub(super) fn next_record(&mut self) -> Option<Result<Record, HostViolation>> {
        Some(match self.channel.next_line()? {
            Ok(line) => self
                .checker
                .check(line)
                .map_err(|violation| HostViolation { violation, line: excerpt(line) }),
            Err(start) => {
                Err(HostViolation { violation: Violation::TooLong, line: start.excerpt() })
            }
        })
    }
}
