//! A client of torch's TCPStore, for the few words that agents exchange under torchrun.
//!
//! The wire format is that of `torch/csrc/distributed/c10d/TCPStore.cpp`, unchanged since torch 2.1:
//! a byte for the query, then its arguments; strings and byte strings follow their length, a 64-bit
//! number in the byte order of the machine.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

/// First number of a client, by which a store knows it (`validationMagicNumber`).
const MAGIC: u32 = 0x3c85_f7ce;

/// Largest value that is read, in bytes.
const MOST: u64 = 1 << 16;

/// Queries (`QueryType`).
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const DELETE_KEY: u8 = 8;

/// Answer to [`WAIT`]: all keys are there (`WaitResponseType::STOP_WAITING`).
const STOP_WAITING: u8 = 0;

/// A connection to a TCPStore.
#[derive(Debug)]
pub(super) struct TcpStore {
    stream: TcpStream,
}

impl TcpStore {
    /// A client over a connection to a store.
    pub(super) fn over(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let mut query = vec![VALIDATE];
        query.extend(MAGIC.to_ne_bytes());
        stream.write_all(&query)?;
        Ok(Self { stream })
    }

    /// Address of the store's machine.
    pub(super) fn address(&self) -> io::Result<IpAddr> {
        Ok(self.stream.peer_addr()?.ip())
    }

    /// Sets the value of a key.
    pub(super) fn set(&mut self, key: &str, value: &[u8]) -> io::Result<()> {
        self.ask(SET, &[text(key), bytes(value)])
    }

    /// Removes a key.
    pub(super) fn delete(&mut self, key: &str) -> io::Result<()> {
        self.ask(DELETE_KEY, &[text(key)])?;
        self.number().map(drop)
    }

    /// The value of a key, as soon as there is one.
    ///
    /// # Errors
    /// When there is none until `deadline`, or the connection breaks.
    pub(super) fn wait_get(&mut self, key: &str, deadline: Instant) -> io::Result<Vec<u8>> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        self.ask(WAIT, &[1u64.to_ne_bytes().to_vec(), text(key)])?;
        let mut answer = [0];
        self.stream.read_exact(&mut answer)?;
        if answer[0] != STOP_WAITING {
            return Err(io::Error::other("the store has given up the wait"));
        }
        self.ask(GET, &[text(key)])?;
        let length = self.number()?;
        if length > MOST {
            return Err(io::Error::other("the store's value is too long"));
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

/// A key as the store's own clients write it: each has this prefix.
fn text(key: &str) -> Vec<u8> {
    bytes(format!("/{key}").as_bytes())
}

fn bytes(value: &[u8]) -> Vec<u8> {
    [&(value.len() as u64).to_ne_bytes()[..], value].concat()
}
