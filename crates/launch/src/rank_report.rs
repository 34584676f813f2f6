//! Reports about the ranks of a run, made by the process that started the ranks.

use serde::{Deserialize, Serialize};

use super::LaunchError;
use super::channel::OverlongLine;
use zprobe_model::trace::{Event, Outcome, Violation};

/// A report about a rank or a host, made by the process that started it.
pub(super) enum RankReport<'a> {
    /// A line arrived on the event channel of a rank. After a line that is too long, no other line of the rank
    /// follows.
    Line { rank: usize, line: Result<&'a [u8], OverlongLine<'a>> },
    /// Another agent received a line of a rank that is too long; `start` is the start of the line.
    TooLong { rank: usize, start: String },
    /// A host is about to import `what`, for all ranks that the host is going to fork.
    Importing { what: String, t_ns: u64 },
    /// The process of a rank exists. `agent` is the agent whose command started the process, if the run has several
    /// agents.
    Spawned { rank: usize, pid: u32, agent: Option<usize>, t_ns: u64 },
    /// The process of a rank has ended, and no other line of the rank follows.
    Ended { rank: usize, outcome: Outcome, t_ns: u64 },
    /// The process of a rank is gone, and its outcome is not known yet.
    Gone { rank: usize },
    /// A rank is no longer watched; its process continues.
    LetGo { rank: usize },
    /// An event of a rank, or of the launcher if `rank` is `None`, that did not arrive on an event channel.
    Event { rank: Option<usize>, event: Event },
    /// A host wrote a line that violates the protocol; `line` is the start of the line.
    HostViolated { violation: Violation, line: String },
    /// The last lines on the standard error of a rank, or of a host if `rank` is `None`.
    Stderr { rank: Option<usize>, tail: String },
    /// A rank has written a message to the ranks of other machines.
    Message(RankMessage),
}

/// A message of one rank to all other ranks: a file in the mailbox of the rank's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankMessage {
    /// The file name of the message, such as `first-step.3`.
    pub(super) name: String,
    pub(super) text: String,
}

impl RankMessage {
    /// Returns the message that the rank `rank` is gone. The other ranks then do not wait for messages of this rank.
    pub(super) fn of_gone(rank: usize) -> Self {
        Self { name: format!("gone.{rank}"), text: String::from("{}") }
    }
}

/// The receiver of reports about ranks, in the order of the events.
pub(super) type ReportSink<'a> = dyn FnMut(RankReport<'_>) -> Result<(), LaunchError> + 'a;
