//! The launcher's end of a pipe or of a connection, whose content is split into lines.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

use super::line_checker::excerpt;
use zprobe_model::trace::LONGEST_LINE;

/// The requested capacity of a pipe, in bytes. A line holds a whole buffer, and a rank should not have to wait for
/// the launcher in the middle of a line. The value is Linux's default limit for unprivileged processes.
const PIPE_CAPACITY: i32 = 1 << 20;

/// The receiving end of a channel, which returns the received bytes as lines.
#[derive(Debug)]
pub(super) struct Channel {
    pipe: File,
    buffer: Vec<u8>,
    /// The offset of the first line that was not returned yet.
    start: usize,
    /// The offset up to which the buffer was searched for a line feed.
    searched: usize,
    limit: usize,
}

/// The state of a channel: whether more bytes may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelState {
    /// Another process may still hold the sending end of the channel.
    Open,
    /// No process holds the sending end of the channel.
    Closed,
}

/// A line that is longer than the limit. The value holds the part of the line that was received.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OverlongLine<'a>(&'a [u8]);

impl OverlongLine<'_> {
    /// Returns the start of the line in the form in which the trace stores it.
    pub(super) fn excerpt(&self) -> String {
        excerpt(self.0)
    }
}

impl Channel {
    /// Creates a channel and its sending end. Child processes inherit neither of the two descriptors.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let (receiver, sender) = pipe2(OFlag::O_CLOEXEC)?;
        // Only the receiving end is non-blocking: the sending end is a separate open file, and writes to it still
        // block.
        fcntl(&receiver, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // The kernel refuses this capacity if the pipes of the user hold too many bytes already. A smaller pipe is
        // only slower.
        let _ = fcntl(&receiver, FcntlArg::F_SETPIPE_SZ(PIPE_CAPACITY));
        Ok((Self::over(receiver, LONGEST_LINE), sender))
    }

    /// Creates a channel that receives from a non-blocking descriptor. A line has at most `limit` bytes.
    pub(super) fn over(receiver: OwnedFd, limit: usize) -> Self {
        let pipe = File::from(receiver);
        Self { pipe, buffer: Vec::new(), start: 0, searched: 0, limit }
    }

    /// Receives the available bytes without waiting, up to the capacity of the pipe. If the sending process has died,
    /// this returns all bytes that it ever sent, even if one of its descendants keeps the sending end open or
    /// continues to write.
    pub(super) fn receive(&mut self) -> ChannelState {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        let capacity = fcntl(&self.pipe, FcntlArg::F_GETPIPE_SZ).unwrap_or(PIPE_CAPACITY);
        let mut burst = (&self.pipe).take(capacity.unsigned_abs().into());
        match burst.read_to_end(&mut self.buffer) {
            Ok(_) if burst.limit() == 0 => ChannelState::Open,
            Ok(_) => ChannelState::Closed,
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => ChannelState::Open,
            Err(_) => ChannelState::Closed,
        }
    }

    /// Returns the next complete line that was received, without its line feed.
    pub(super) fn next_line(&mut self) -> Option<Result<&[u8], OverlongLine<'_>>> {
        let feed = memchr::memchr(b'\n', &self.buffer[self.searched..]);
        let end = feed.map_or(self.buffer.len(), |offset| self.searched + offset);
        let line = self.start..end;
        if line.len() > self.limit {
            return Some(Err(OverlongLine(&self.buffer[line])));
        }
        if feed.is_none() {
            self.searched = end;
            return None;
        }
        self.start = end + 1;
        self.searched = self.start;
        Some(Ok(&self.buffer[line]))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn channel() -> (Channel, File) {
        let (channel, sender) = Channel::new().unwrap();
        (channel, File::from(sender))
    }

    fn lines(channel: &mut Channel) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = channel.next_line() {
            lines.push(String::from_utf8(line.unwrap().to_vec()).unwrap());
        }
        lines
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let (mut channel, mut sender) = channel();
        let mut seen = Vec::new();
        for piece in ["one\ntw", "", "o\n\nthr", "ee", "\nfour"] {
            sender.write_all(piece.as_bytes()).unwrap();
            assert_eq!(channel.receive(), ChannelState::Open);
            seen.extend(lines(&mut channel));
        }
        assert_eq!(seen, ["one", "two", "", "three"]);
    }

    #[test]
    fn a_line_longer_than_the_pipe_arrives_whole() {
        let (mut channel, mut sender) = channel();
        let long = "x".repeat(5_000_000);
        let writer = std::thread::spawn({
            let line = format!("{long}\n");
            move || sender.write_all(line.as_bytes()).unwrap()
        });
        let mut seen = Vec::new();
        while channel.receive() == ChannelState::Open {
            seen.extend(lines(&mut channel));
        }
        seen.extend(lines(&mut channel));
        writer.join().unwrap();
        assert_eq!(seen, [long]);
    }

    #[test]
    fn a_line_past_the_limit_is_refused_with_and_without_line_feed() {
        for text in ["123456789\n", "123456789"] {
            let (mut channel, mut sender) = channel();
            channel.limit = 8;
            sender.write_all(text.as_bytes()).unwrap();
            channel.receive();
            assert_eq!(channel.next_line(), Some(Err(OverlongLine(b"123456789"))));
        }
    }

    #[test]
    fn a_line_without_line_feed_was_never_sent() {
        let (mut channel, mut sender) = channel();
        sender.write_all(b"half").unwrap();
        drop(sender);
        assert_eq!(channel.receive(), ChannelState::Closed);
        assert_eq!(channel.next_line(), None);
    }

    #[test]
    fn a_sender_that_never_stops_does_not_hold_up_the_receiver() {
        let (mut channel, mut sender) = channel();
        std::thread::spawn(move || while sender.write_all(&[b'x'; 4096]).is_ok() {});
        assert_eq!(channel.receive(), ChannelState::Open);
    }
}
