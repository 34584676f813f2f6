//! The messages between agents, one JSON object per line. Agents send the lines of ranks unchanged, as further lines of
//! the same connection.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::rank_report::RankMessage;
use crate::ranks::StopReason;
use zprobe_model::trace::{Event, Outcome, Violation};

/// An agent: a zprobe process that starts some of the ranks of a run, or that starts a command whose processes join
/// the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The number of the agent. The leader has number 0; another agent has [`UNNUMBERED`](crate::job::UNNUMBERED)
    /// until the leader gives it a number.
    pub index: usize,
    /// The ranks that the agent starts; empty if the agent starts a command, whose processes join later.
    pub ranks: Range<usize>,
    /// The host name of the agent's machine.
    pub machine: String,
}

/// A message from one agent to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum AgentMessage {
    /// The first message of an agent to the leader.
    Knock { nonce: String },
    /// The leader's answer, which proves that the leader knows the token of the job.
    Challenge { nonce: String, proof: String },
    /// The agent's second message, which proves that the agent knows the token, and describes the run that the agent
    /// is about to perform.
    Hello {
        proof: String,
        agent: Agent,
        agents: usize,
        zprobe: String,
        settings: String,
        t_ns: u64,
    },
    /// The leader says that all agents have connected, and gives this agent its number.
    Welcome { run: String, index: usize, interface: Option<String> },
    /// The leader ends the job before a run, for the reason `why`.
    Refused { why: String },
    /// A run begins. `run` is the id of the run, and `repeat` is the number of the run among several repeats. `port` is
    /// the port of the ranks' TCPStore; `None` if the user's commands start the ranks.
    Start { run: String, repeat: Option<usize>, port: Option<u16> },
    /// The leader asks for the stacks of ranks that have been silent for too long.
    Look,
    /// The agent has taken the stacks, and has reported all facts about silent ranks.
    Looked,
    /// A message of a rank to the ranks of the other agents.
    RankMessage(RankMessage),
    /// The leader asks the agent to end the processes of the run.
    End { why: StopReason },
    /// The job is over, and all agents exit with this code.
    Over { exit: u8 },
    /// A heartbeat. `starved` lists ranks that had no CPU core for some time since the last heartbeat, each with this
    /// time in nanoseconds.
    Beat { starved: Vec<(usize, u64)> },
    /// The process of a rank exists.
    Spawned { rank: usize, pid: u32, agent: Option<usize>, t_ns: u64 },
    /// The process of a rank has ended.
    Ended { rank: usize, outcome: Outcome, t_ns: u64 },
    /// The process of a rank is gone, and its outcome is not known yet.
    Gone { rank: usize },
    /// A rank is no longer watched; its process continues.
    LetGo { rank: usize },
    /// An event of a rank, or of the launcher if `rank` is `None`, that did not arrive on an event channel.
    Told { rank: Option<usize>, event: Box<Event> },
    /// A rank wrote a line that is too long; `start` is the start of the line.
    TooLong { rank: usize, start: String },
    /// A host wrote a line that violates the protocol.
    HostViolated { violation: Violation, line: String },
    /// The last lines on the standard error of a rank, or of a host if `rank` is `None`.
    LastWords { rank: Option<usize>, tail: String },
    /// All processes of the agent have ended by themselves.
    Idle,
    /// The user has interrupted the agent.
    Interrupted,
    /// The agent could not start its ranks, or could not write their records.
    Failed { message: String },
    /// The run is over for the agent, and no further message about the run follows. `survivors` are the ids of
    /// processes that SIGKILL did not end.
    Done { survivors: Vec<u32> },
}
