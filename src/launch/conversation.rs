//! A channel together with the sender at its other end.

use super::channel::{Channel, TooLong};
use super::sender::{Sender, excerpt};
use crate::trace::{Record, Violation};

/// The channel from a rank, or from a host that forks ranks, with the state of its sender.
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
    /// The next record that was received, with its line.
    pub(super) fn next_record(&mut self) -> Option<Result<(&[u8], Record), Breach>> {
        let (violation, line) = match self.channel.next_line()? {
            Ok(line) => match self.sender.check(line) {
                Ok(record) => return Some(Ok((line, record))),
                Err(violation) => (violation, line),
            },
            Err(TooLong(start)) => (Violation::TooLong, start),
        };
        Some(Err(Breach { violation, line: excerpt(line) }))
    }
}
