//! News of the ranks of a run, as the process that started them hears of it.

use serde::{Deserialize, Serialize};

use super::LaunchError;
use super::channel::TooLong;
use zprobe_model::trace::{Event, Outcome, Violation};

/// Something that a process heard of the ranks that it started.
pub(super) enum News<'a> {
    /// A line on the event channel of a rank. After one that is too long there is no other.
    Line { rank: usize, line: Result<&'a [u8], TooLong<'a>> },
    /// Another agent heard a line that is too long; this is its start.
    TooLong { rank: usize, start: String },
    /// A host is about to import something, for all ranks that it is going to fork.
    Importing { what: String, t_ns: u64 },
    /// The process of a rank exists; with the agent whose command has started the process, if there are several.
    Spawned { rank: usize, pid: u32, agent: Option<usize>, t_ns: u64 },
    /// The process of a rank is gone; there is no other line of it.
    Ended { rank: usize, outcome: Outcome, t_ns: u64 },
    /// The process of a rank is gone, and nobody knows yet how it ended.
    Gone { rank: usize },
    /// A rank is no longer watched; its process goes on.
    LetGo { rank: usize },
    /// Something that was learned of a rank, or of the run: an event of the rank, or of the launcher.
    Told { rank: Option<usize>, event: Event },
    /// A host wrote something that is not the protocol; `line` is its start.
    HostViolated { violation: Violation, line: String },
    /// The last lines on standard error of a rank, or of a host.
    LastWords { rank: Option<usize>, tail: String },
    /// A rank has written to the ranks of other machines.
    Letter(Letter),
}

/// A letter of a rank to all other ranks: a file in the mailbox of its machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Letter {
    /// Name of the file.
    pub(super) name: String,
    pub(super) text: String,
}

impl Letter {
    /// The letter that says that a rank is gone: no other rank is to wait for what it would have written.
    pub(super) fn of_gone(rank: usize) -> Self {
        Self { name: format!("gone.{rank}"), text: String::from("{}") }
    }
}

/// Receiver of news, in the order in which things happened.
pub(super) type Sink<'a> = dyn FnMut(News<'_>) -> Result<(), LaunchError> + 'a;
