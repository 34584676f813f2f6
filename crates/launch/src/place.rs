//! Place of a process among those that start the ranks of a run.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use super::LaunchError;

/// Linux's name of the loopback interface, which no other machine reaches.
pub(super) const LOOPBACK: &str = "lo";

/// The ranks of a run that a process starts, and the address at which they meet all others.
pub(super) struct Place {
    /// The ranks.
    pub(super) ranks: Range<usize>,
    /// Local rank of the first of them.
    pub(super) first_local: usize,
    /// Number of ranks on this machine.
    pub(super) local_world_size: usize,
    /// Host and port of the TCPStore.
    pub(super) master: (String, u16),
    /// Socket of the TCPStore, for the process that starts rank 0. It listens already, so no other
    /// process can take its port.
    pub(super) store: Option<TcpListener>,
    /// Network interface that Gloo uses.
    pub(super) interface: String,
}

impl Place {
    /// The place of a process that starts all ranks.
    pub(super) fn of_all(world_size: usize) -> Result<Self, LaunchError> {
        let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(LaunchError::system("a socket for the ranks to meet at"))?;
        let address =
            store.local_addr().map_err(LaunchError::system("the ranks' meeting point"))?;
        Ok(Self {
            ranks: 0..world_size,
            first_local: 0,
            local_world_size: world_size,
            master: (address.ip().to_string(), address.port()),
            store: Some(store),
            // By default Gloo listens on the address of the host name, which other machines may reach.
            interface: LOOPBACK.to_owned(),
        })
    }
}
