//! A client of torch's TCPStore, for the few values that agents exchange under torchrun.
//!
//! The wire format is defined in `torch/csrc/distributed/c10d/TCPStore.cpp`, and is unchanged since torch 2.1. A query
//! is one byte, followed by the arguments of the query. A string is sent after its length, which is a 64-bit number in
//! the byte order of the machine.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

/// The number that a client sends first, by which a store recognises clients (`validationMagicNumber`).
const MAGIC: u32 = 0x3c85_f7ce;

/// The size of the largest value that is read, in bytes.
const MOST: u64 = 1 << 16;

// The query codes of the TCPStore protocol (`QueryType`).
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const DELETE_KEY: u8 = 8;

/// The answer to [`WAIT`] if all keys exist (`WaitResponseType::STOP_WAITING`).
const STOP_WAITING: u8 = 0;

/// A connection to a TCPStore.
#[derive(Debug)]
pub(super) struct TcpStore {
    stream: TcpStream,
}

impl TcpStore {
    /// Creates a client on a connection to a store.
    pub(super) fn over(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let mut query = vec![VALIDATE];
        query.extend(MAGIC.to_ne_bytes());
        stream.write_all(&query)?;
        Ok(Self { stream })
    }

    /// Returns the IP address of the store's machine.
    pub(super) fn address(&self) -> io::Result<IpAddr> {
        Ok(self.stream.peer_addr()?.ip())
    }

    /// Sets the value of a key.
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.ask(SET, &[text(key), bytes(value)])
    }

    /// Removes a key from the store.
    pub(super) fn delete(&mut self, key: &str) -> io::Result<()> {
        self.ask(DELETE_KEY, &[text(key)])?;
        self.number().map(drop)
    }

    /// Returns the value of a key, as soon as the key exists.
    ///
    /// # Errors
    /// Fails if the key does not exist by `deadline`, or if the connection breaks.
    pub(super) fn wait_get(&mut self, key: &str, deadline: Instant) -> io::Result<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        self.ask(WAIT, &[1u64.to_ne_bytes().to_vec(), text(key)])?;
        let mut answer = [0];
        self.stream.read_exact(&mut answer)?;
        if answer[0] != STOP_WAITING {
            return Err(io::Error::other("the store stopped waiting for the key"));
        }
        self.ask(GET, &[text(key)])?;
        let length = self.number()?;
        if length > MOST {
            return Err(io::Error::other("the value in the store is too long"));
        }
        let mut value = Vec::new();
        (&self.stream).take(length).read_to_end(&mut value)?;
        Ok(value)
    }

    fn ask(&mut self, query: u8, arguments: &[Vec<u8>]) -> io::Result<()> {
        self.stream.write_all(&[&[query], arguments.concat().as_slice()].concat())
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = [0; 8];
        self.stream.read_exact(&mut number)?;
        Ok(u64::from_ne_bytes(number))
    }
}

/// Encodes a key with the prefix that the store's own clients put before each key.
fn text(key: &str) -> Vec<u8> {
    bytes(format!("/{key}").as_bytes())
}

fn bytes(value: &[u8]) -> Vec<u8> {
    [&(value.len() as u64).to_ne_bytes()[..], value].concat()
}
