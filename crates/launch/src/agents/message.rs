//! Messages between agents: one JSON object a line, and the lines of ranks as they are.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::news::Letter;
use crate::ranks::Why;
use zprobe_model::trace::{Event, Outcome, Violation};

/// An agent: a zprobe process that starts some of the ranks of a run, or starts a command whose processes join the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Number of the agent: 0 for the leader, and [`UNNUMBERED`](crate::job::UNNUMBERED) for another one until the leader has given it a
    /// number.
    pub index: usize,
    /// The ranks that the agent starts; empty where the agent starts a command, whose processes join later.
    pub ranks: Range<usize>,
    /// Name of its machine.
    pub machine: String,
}

/// A message from one agent to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Message {
    /// First words of an agent to the leader.
    Knock { nonce: String },
    /// The leader's answer, which proves that it knows the token.
    Challenge { nonce: String, proof: String },
    /// The agent's answer, which proves the same, and what it is about to run.
    Hello {
        proof: String,
        agent: Agent,
        agents: usize,
        zprobe: String,
        settings: String,
        t_ns: u64,
    },
    /// All agents have come; the number of this one.
    Welcome { run: String, index: usize, interface: Option<String> },
    /// The leader ends everything before a run, for this reason.
    Refused { why: String },
    /// A run begins: its id, its directory below that of the command, and the port of the ranks' TCPStore, if the
    /// agents start the ranks.
    Start { run: String, repeat: Option<usize>, port: Option<u16> },
    /// Ranks have been silent for too long: their stacks are to be taken.
    Look,
    /// The stacks were taken, and all that was learned of silent ranks was told.
    Looked,
    /// A letter of a rank to the ranks of the other agents.
    Letter(Letter),
    /// The processes of the run are to be ended.
    End { why: Why },
    /// Everything is over; all agents exit with this code.
    Over { exit: u8 },
    /// A sign of life, with the time in nanoseconds for which ranks had no core since the last one.
    Beat { starved: Vec<(usize, u64)> },
    /// The process of a rank exists.
    Spawned { rank: usize, pid: u32, agent: Option<usize>, t_ns: u64 },
    /// The process of a rank is gone.
    Ended { rank: usize, outcome: Outcome, t_ns: u64 },
    /// The process of a rank is gone, and nobody knows yet how it ended.
    Gone { rank: usize },
    /// A rank is no longer watched; its process goes on.
    LetGo { rank: usize },
    /// Something that was learned of a rank, or of the run.
    Told { rank: Option<usize>, event: Box<Event> },
    /// A rank wrote a line that is too long; this is its start.
    TooLong { rank: usize, start: String },
    /// A host wrote something that is not the protocol.
    HostViolated { violation: Violation, line: String },
    /// The last lines on standard error of a rank, or of a host.
    LastWords { rank: Option<usize>, tail: String },
    /// All processes of the agent have ended by themselves.
    Idle,
    /// The user has interrupted the agent.
    Interrupted,
    /// The ranks of the agent could not be started, or their records not be written.
    Failed { message: String },
    /// The run is over for the agent, which has told all; with the processes that did not die.
    Done { survivors: Vec<u32> },
}
