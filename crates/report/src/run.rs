//! The run in a report: its specification, its software, and the end of its recording.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use zprobe_model::spec::{RunSpec, named_enum};

/// The specification of a run, and the software that it ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The complete specification of the run.
    pub spec: RunSpec,
    /// The versions of zprobe and of the packages that the ranks ran, by name.
    pub versions: BTreeMap<String, String>,
    /// The class that really wrapped the inner optimizer; `None` if no rank got as far as choosing one.
    pub optimizer_class: Option<String>,
    /// The class of the inner optimizer; `None` if no rank got as far as choosing one.
    pub inner_optimizer: Option<String>,
    /// The facts that the engine states about itself, by name. If a rank states another value than rank 0, ` (rank 1)`
    /// or the like is appended to the name of its value.
    pub engine_facts: BTreeMap<String, String>,
    /// The parts of the engine that were not observed.
    pub not_observed: Vec<NotObserved>,
    /// The way in which the recording ended.
    pub ending: Ending,
    /// The command that repeats the run, without the interpreter, whose path is private. A DeepSpeed file that the
    /// command names is in the bug report of `zprobe issue`. `None` if no flags describe the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// A part of the engine that was not observed, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotObserved {
    /// The name of the part that was not observed.
    pub what: String,
    /// The reason why the part was not observed.
    pub why: String,
}

named_enum! {
    /// The way in which the recording of a run ended.
    pub enum Ending {
        /// Every rank ended, successfully or not.
        Complete = "complete",
        /// The user interrupted the run.
        Interrupted = "interrupted",
        /// The trace ends although ranks were still running: zprobe itself was killed, or the trace file was truncated.
        CutOff = "cut-off",
    }
}
