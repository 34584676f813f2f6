//! A connection between two agents.

use std::io::{self, Write as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message::AgentMessage;
use crate::channel::{Channel, ChannelState};
use crate::wait::timeout;
use zprobe_model::trace::LONGEST_LINE;

/// The largest number of bytes before the line of a rank: the number of the rank and a space.
const PREFIX: usize = 24;

/// The number of unsent bytes from which an agent stops reading from its ranks.
const FULL: usize = 8 << 20;

/// The interval between two heartbeats.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// A connection to another agent. Sending never blocks: bytes that cannot be sent at once are kept.
#[derive(Debug)]
pub(super) struct Link {
    channel: Channel,
    stream: TcpStream,
    outbox: Vec<u8>,
    /// The number of bytes of the outbox that were sent.
    sent: usize,
    /// The time at which data last arrived from the other agent.
    pub(super) heard: Instant,
    /// The time of the next heartbeat.
    pub(super) beat: Instant,
}

/// A line that another agent sent.
#[derive(Debug)]
pub(super) enum AgentLine<'a> {
    /// A line that a rank of the other agent wrote.
    Line { rank: usize, line: &'a [u8] },
    /// A message of the other agent itself.
    Message(Box<AgentMessage>),
    /// A line that violates the protocol between agents.
    Garbled,
}

impl Link {
    /// Creates a link over a TCP connection.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let channel = Channel::over(stream.try_clone()?.into(), LONGEST_LINE + PREFIX);
        let now = Instant::now();
        Ok(Self { channel, stream, outbox: Vec::new(), sent: 0, heard: now, beat: now + BEAT })
    }

    /// Returns the address of this machine on this connection.
    pub(super) fn own_address(&self) -> io::Result<IpAddr> {
        Ok(self.stream.local_addr()?.ip())
    }

    /// Returns the address of the other machine.
    pub(super) fn address(&self) -> io::Result<IpAddr> {
        Ok(self.stream.peer_addr()?.ip())
    }

    /// Sends a message, as far as this is possible without waiting.
    pub(super) fn say(&mut self, message: &AgentMessage) -> io::Result<()> {
        serde_json::to_writer(&mut self.outbox, message)?;
        self.outbox.push(b'\n');
        self.send()
    }

    /// Passes on the line of a rank, as far as this is possible without waiting.
    pub(super) fn pass_on(&mut self, rank: usize, line: &[u8]) -> io::Result<()> {
        write!(self.outbox, "{rank} ")?;
        self.outbox.extend_from_slice(line);
        self.outbox.push(b'\n');
        self.send()
    }

    /// Sends as many bytes as the connection takes without waiting.
    pub(super) fn send(&mut self) -> io::Result<()> {
        while self.sent < self.outbox.len() {
            match self.stream.write(&self.outbox[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.outbox.len() {
            self.outbox.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// True if some bytes wait to be sent.
    pub(super) fn has_more(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// True if the outbox is full, so that no more bytes should be added.
    pub(super) fn is_full(&self) -> bool {
        self.outbox.len() - self.sent > FULL
    }

    /// Receives the bytes that have arrived.
    pub(super) fn receive(&mut self) -> ChannelState {
        self.heard = Instant::now();
        self.channel.receive()
    }

    /// True if bytes of the other agent have arrived and are not received yet. In that case this process was held up,
    /// and the other agent was not silent.
    pub(super) fn has_unread(&self) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Returns the next line that was received, or `None` if no complete line has arrived.
    pub(super) fn next(&mut self) -> Option<AgentLine<'_>> {
        let Ok(line) = self.channel.next_line()? else { return Some(AgentLine::Garbled) };
        if line.first() == Some(&b'{') {
            let message = serde_json::from_slice(line);
            return Some(message.map_or(AgentLine::Garbled, |it| AgentLine::Message(Box::new(it))));
        }
        let rank = memchr::memchr(b' ', line).and_then(|space| {
            Some((std::str::from_utf8(&line[..space]).ok()?.parse().ok()?, space))
        });
        Some(match rank {
            Some((rank, space)) => AgentLine::Line { rank, line: &line[space + 1..] },
            None => AgentLine::Garbled,
        })
    }

    /// Waits for a message until `deadline`. Returns `None` if no message has arrived by then.
    ///
    /// # Errors
    /// Fails if the connection is closed, or if the process at the other end is not an agent.
    pub(super) fn wait_for_message(
        &mut self,
        deadline: Instant,
    ) -> io::Result<Option<AgentMessage>> {
        let mut state = ChannelState::Open;
        loop {
            match self.next() {
                Some(AgentLine::Message(message)) => return Ok(Some(*message)),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None if state == ChannelState::Closed => {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                None => {}
            }
            let mut fds = [PollFd::new(self.stream.as_fd(), self.awaited())];
            match poll(&mut fds, timeout(deadline)) {
                Ok(0) if Instant::now() >= deadline => return Ok(None),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.send()?;
            state = self.receive();
        }
    }

    /// Waits until more bytes can be sent, and sends them. Returns false at the deadline, or if the connection is
    /// broken.
    pub(super) fn wait_to_send(&mut self, deadline: Instant) -> bool {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
        let waited = poll(&mut fds, timeout(deadline));
        !matches!(waited, Ok(0)) && self.send().is_ok()
    }

    /// Returns the events to poll for.
    pub(super) fn awaited(&self) -> PollFlags {
        if self.has_more() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
