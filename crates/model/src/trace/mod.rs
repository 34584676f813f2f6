//! The trace of a run: its events, and the records that hold them.
//!
//! Ranks and launcher emit [`Event`]s. Each event is wrapped in a [`Record`] and written to `trace.jsonl` in the run
//! directory at once, so a run whose ranks died still has a trace. The report is computed only from this file.

mod contents;
pub mod contract;
mod event;
pub mod handover;
mod meetings;
mod payload;
mod plausible;
mod process;
mod record;
mod repeats;
mod script;
mod settle;
mod step;

pub use crate::spec::Point;
pub use contents::Contents;
pub use event::{Event, REST_OF_SCRIPT, UNSET_MEMORY};
pub use meetings::{Meeting, Meetings, Reached, Waiting};
pub use payload::{Payload, combined_digest, digest};
pub use process::{AgentLoss, Frame, Outcome, Violation};
pub use record::{LONGEST_LINE, PROTOCOL_VERSION, Record, TRACE_FILE, Trace, TraceError};
pub use repeats::{is_recorded, repeat_dir, trace_dirs};
pub use script::{
    Aside, Block, ClippedInVain, ConstantKind, Filler, GradientsClipped, InVain, IssuedCollectives,
    LEAST_LOSS_SCALE, Left, LossConstant, LossTerm, LossWeighed, OptimizerStepped, Remarks, TermOf,
    Transform, UnreadKeys, UpdatesRounded,
};
pub use settle::NoAnswer;
pub use step::{
    CollectiveOp, Differing, FlushReason, LayoutName, ParamInfo, Phase, StateCompared, Unequal,
};
