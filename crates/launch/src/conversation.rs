//! The channel of a host that forks ranks, together with the host at its other end.

use super::channel::Channel;
use super::sender::{Sender, excerpt};
use zprobe_model::trace::{Record, Violation};

/// The channel from a host that forks ranks, with the state of its sender.
pub(super) struct Conversation {
    pub(super) channel: Channel,
    pub(super) sender: Sender,
}

/// A line that is not the sender's next record.
pub(super) struct Breach {
    pub(super) violation: Violation,
    /// The start of the line.
    pub(super) line: String,
}

impl Conversation {
    /// The next record that was received.
    pub(super) fn next_record(&mut self) -> Option<Result<Record, Breach>> {
        Some(match self.channel.next_line()? {
            Ok(line) => self
                .sender
                .check(line)
                .map_err(|violation| Breach { violation, line: excerpt(line) }),
            Err(start) => Err(Breach { violation: Violation::TooLong, line: start.excerpt() }),
        })
    }
}
