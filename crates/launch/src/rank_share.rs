//! The part of a run that one process starts: its ranks, and the address of the TCPStore.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use super::LaunchError;

/// Linux's name of the loopback interface, which other machines cannot reach.
pub(super) const LOOPBACK: &str = "lo";

/// The ranks that one process starts, and the TCPStore at which they connect to all other ranks.
pub(super) struct RankShare {
    /// The range of ranks that this process starts.
    pub(super) ranks: Range<usize>,
    /// The local rank of the first rank in `ranks`.
    pub(super) first_local: usize,
    /// The number of ranks on this machine.
    pub(super) local_world_size: usize,
    /// The host and the port of the TCPStore.
    pub(super) master: (String, u16),
    /// The listening socket of the TCPStore, held by the process that starts rank 0; `None` in other processes. The
    /// socket listens already, so no other process can take its port.
    pub(super) store: Option<TcpListener>,
    /// The network interface that Gloo uses.
    pub(super) interface: String,
}

impl RankShare {
    /// Returns the share of a process that starts all ranks of a run.
    pub(super) fn of_all(world_size: usize) -> Result<Self, LaunchError> {
        let store = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(LaunchError::system("a socket for the TCPStore of the ranks"))?;
        let address =
            store.local_addr().map_err(LaunchError::system("the address of the TCPStore"))?;
        Ok(Self {
            ranks: 0..world_size,
            first_local: 0,
            local_world_size: world_size,
            master: (address.ip().to_string(), address.port()),
            store: Some(store),
            // By default Gloo listens on the address of the host name, which other machines may be able to reach.
            interface: LOOPBACK.to_owned(),
        })
    }
}
