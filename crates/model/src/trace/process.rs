//! The content of events about the processes of a run: how they end, and what the launcher hears from them.

use nix::sys::signal::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::named_enum;

/// A frame of a Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Frame {
    /// The file path without its private part: relative to the script's working directory, to the directory of
    /// packages or to the directory of the standard library, or only the file name.
    pub file: String,
    /// The line number, from 1; 0 if the line is unknown.
    pub line: usize,
    /// The name of the function.
    pub function: String,
    /// True if the file is the user's own code, and not part of a package or of the standard library.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own: bool,
}

impl Frame {
    /// Returns the place of the frame in words: `train.py:57 (load)`.
    pub fn place(&self) -> String {
        format!("{}:{} ({})", self.file, self.line, self.function)
    }
}

/// The outcome of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The process exited with this code.
    Code(i32),
    /// The process was ended by the signal with this number.
    Signal(i32),
    /// The process was ended by zprobe, because the run was over.
    Reaped,
    /// The process ended, and its outcome is unknown because zprobe did not start the process.
    Unseen,
    /// The process ended together with its launcher, which was ended by the signal with this number.
    WithLauncher(i32),
    /// The agent of the process was lost, so that the outcome of the process is unknown.
    Lost,
}

impl Outcome {
    /// Describes the end of a process, or of its launcher, by a signal, in words. Returns `None` for other outcomes.
    pub fn death(self) -> Option<String> {
        let (number, before) = match self {
            Self::Signal(number) => (number, ""),
            Self::WithLauncher(number) => (number, "ended together with the launcher, which was "),
            _ => return None,
        };
        Some(match Signal::try_from(number) {
            Ok(signal) => format!("{before}killed by {signal}"),
            Err(_) => format!("{before}killed by signal {number}"),
        })
    }

    /// Returns the outcome that counts among several commands: the first outcome that is not a success. A command
    /// that zprobe had to kill has the outcome `None`. `known` is the counting outcome of the commands before `next`,
    /// if there were any.
    pub fn of_commands(known: Option<Option<Self>>, next: Option<Self>) -> Option<Self> {
        known.filter(|known| *known != Some(Self::Code(0))).unwrap_or(next)
    }
}

named_enum! {
    /// The kind of violation in a line on the event channel of a rank.
    pub enum Violation {
        /// The line is not JSON.
        NotJson = "not-json",
        /// The line is JSON, but not a record of this protocol version.
        NotARecord = "not-a-record",
        /// The event does not fit the run, for example because the run has no such step, microbatch or size.
        Implausible = "implausible",
        /// The record names another rank or another run.
        WrongSender = "wrong-sender",
        /// The sequence number of the record does not follow the previous number.
        OutOfSequence = "out-of-sequence",
        /// The line does not end within the size limit.
        TooLong = "too-long",
        /// The record came after the rank's `finished` event.
        AfterFinished = "after-finished",
        /// The event is one that only the launcher may emit.
        LauncherEvent = "launcher-event",
    }
}

named_enum! {
    /// The reason why an agent counts as lost.
    pub enum AgentLoss {
        /// The agent has closed the connection, because its process has ended.
        Closed = "closed",
        /// The agent was silent for half the timeout of the run, because its machine is down or unreachable.
        Silent = "silent",
        /// The agent sent a line that violates the protocol between agents.
        Garbled = "garbled",
    }
}
