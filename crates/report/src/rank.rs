//! The ranks of a run in a report: their outcomes and their stack traces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::trace::{Frame, Outcome};

/// The outcome and the last action of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rank {
    /// The number of the rank, from 0.
    pub rank: usize,
    /// The process id; `None` if the process was never started.
    pub pid: Option<u32>,
    /// The outcome of the rank's process; `None` if the outcome is unknown.
    pub outcome: Option<Outcome>,
    /// True if the rank completed all of its work.
    pub finished: bool,
    /// The last action of the rank, in words.
    pub last: String,
    /// The type of the exception that ended the rank, its place in a package, and the known phrases in its message;
    /// `None` if the rank reported no failure. The whole message is in the trace.
    pub failure: Option<String>,
    /// The file of the run directory with the rank's standard error, and the known phrases in its last lines; `None` if
    /// the rank ended successfully.
    pub stderr: Option<String>,
    /// The Python stack traces of a user's script at the moment when the rank crashed or was ended; the main thread
    /// comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
}

/// A Python stack trace of one thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stack {
    /// The number of the thread: 0 for the main thread.
    pub thread: usize,
    /// The frames of the stack, the innermost frame first.
    pub frames: Vec<Frame>,
}

impl Rank {
    /// The outcome of the process in words: `exit code 1`.
    pub fn ending(&self) -> String {
        match self.outcome {
            Some(Outcome::Code(code)) => format!("exit code {code}"),
            Some(Outcome::Signal(signal)) => format!("signal {signal}"),
            Some(Outcome::Reaped) => "ended by zprobe".to_owned(),
            Some(Outcome::Lost) => "lost with its machine".to_owned(),
            Some(Outcome::WithLauncher(signal)) => format!("launcher ended by signal {signal}"),
            Some(Outcome::Unseen) | None => "outcome unknown".to_owned(),
        }
    }
}
