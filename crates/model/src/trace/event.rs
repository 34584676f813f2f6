//! The events: one enum for all engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::sys::signal::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Block, ClippedInVain, GradientsClipped, IssuedCollectives, Left, LossWeighed, OptimizerStepped,
    Payload, Remarks, UpdatesRounded, Waiting,
};
use crate::spec::{Backend, Device, Dtype, Engine, Point, RunSpec, named_enum, plan::Segment};

/// Name in [`Event::NotObserved`] of memory that could not be poisoned.
pub const UNSET_MEMORY: &str = "memory that is read before it is written";

/// Name in [`Event::NotObserved`] of all that a rank of a script does once it is no longer watched.
pub const REST_OF_SCRIPT: &str = "the rest of the script";

/// Something that happened during a run.
///
/// The first group is emitted by the launcher, the second by ranks. `step` and `microbatch` count
/// from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Event {
    /// The launcher is about to start the ranks. Always the first record of a trace.
    RunStarted {
        /// Specification of the run.
        spec: Box<RunSpec>,
        /// Version of zprobe.
        zprobe: String,
    },
    /// Another agent takes part in the run: a zprobe process that starts some of the ranks, or starts a command whose
    /// processes join the run.
    AgentJoined {
        /// Number of the agent; that of rank 0 has number 0.
        agent: usize,
        /// Name of its machine.
        machine: String,
        /// The first of its ranks.
        first_rank: usize,
        /// Number of its ranks; 0 of a command whose processes join, before they have.
        ranks: usize,
        /// Time by which the clock of its machine is ahead of that of rank 0's, in nanoseconds, as
        /// measured when the agents met.
        clock_ns: i64,
    },
    /// An agent is gone, or cannot be reached: nothing more is known of its ranks.
    AgentLost {
        /// Number of the agent.
        agent: usize,
        /// Name of its machine.
        machine: String,
        /// Reason for it.
        why: AgentLoss,
    },
    /// The process of a rank exists.
    RankSpawned {
        /// The rank.
        rank: usize,
        /// Id of the process.
        pid: u32,
        /// Number of the agent whose command has started the process, where there are several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    /// The process of a rank is gone.
    RankExited {
        /// The rank.
        rank: usize,
        /// Outcome of the process.
        outcome: Outcome,
    },
    /// A rank wrote something on its event channel that is not the protocol.
    ProtocolViolated {
        /// The rank; none for the process that hosts the ranks.
        rank: Option<usize>,
        /// Kind of the violation.
        violation: Violation,
        /// The start of the offending line.
        line: String,
    },
    /// The watchdog ended the run: no event came from these ranks for `timeout_s` seconds.
    TimedOut {
        /// Ranks that were silent for that long, had not finished, and did not wait for another. If
        /// every rank that had not finished waited for another, all of these ranks.
        silent: Vec<usize>,
        /// The limit, in seconds.
        timeout_s: u64,
        /// Ranks that waited for others, with their meetings.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<Waiting>,
    },
    /// The process of a rank that was silent is stopped, by SIGSTOP or by a debugger, as its state says.
    RankStopped {
        /// The rank.
        rank: usize,
    },
    /// The user interrupted the run (SIGINT, SIGTERM or SIGHUP).
    Interrupted,
    /// A command of the user's own, whose processes joined the run as its ranks, is over.
    CommandEnded {
        /// Outcome of the command. None if zprobe had to kill the command.
        outcome: Option<Outcome>,
    },
    /// The last lines that a rank wrote to its standard error, recorded if it did not end well.
    Stderr {
        /// The rank; none for the process that hosts the ranks.
        rank: Option<usize>,
        /// The end of its standard error.
        tail: String,
    },
    /// A Python stack of a rank of a user's script: where it was when it crashed, or when it was ended
    /// because it hung.
    StackTaken {
        /// The rank.
        rank: usize,
        /// Number of the thread: 0 for the main one.
        thread: usize,
        /// The frames, the innermost first.
        frames: Vec<Frame>,
    },

    /// Software is about to be imported, which may take long: by a rank, or by a host for all ranks that it is
    /// going to fork.
    Importing {
        /// The package or the engine.
        what: String,
    },
    /// A process of the user's command has begun its first backward, and joins the run as a rank.
    RankJoined {
        /// Number of ranks.
        world_size: usize,
        /// Device of the rank's gradients.
        kind: Device,
        /// Backend of the default process group.
        backend: Backend,
    },
    /// The ranks that joined have numbered the microbatches of a step, as one of them knows it.
    RanksAgreed {
        /// The largest number of microbatches of any rank in the first step.
        microbatches: usize,
        /// Number of codes that were reserved for the microbatches of the first step.
        reserved: usize,
        /// The narrowest dtype of the gradients that autograd delivered.
        dtype: Dtype,
    },
    /// A rank is up, and reports the software that it really runs.
    RankReady {
        /// Name and version of each package that matters (`torch`, `zprobe-rank`, …).
        versions: BTreeMap<String, String>,
        /// Device of the model, for example `cpu` or `cuda:0`.
        device: String,
    },
    /// The model's parameters, in flat order.
    Model {
        /// The parameters.
        params: Vec<ParamInfo>,
    },
    /// Mapping from the elements of a buffer to parameters.
    Layout {
        /// Name that [`Event::Buffer`] refers to.
        layout: LayoutName,
        /// The pieces, in the order in which they lie in the buffer.
        segments: Vec<Segment>,
        /// True if these are the samples that are recorded of a buffer that is too large: pieces of
        /// the segments in the layout of the same name without this flag, which comes first.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sampled: bool,
    },
    /// The optimizer that the engine really uses.
    OptimizerChosen {
        /// Class that wraps the inner optimizer.
        class: String,
        /// Name of the inner optimizer.
        inner: String,
    },
    /// Facts that the engine states about itself: settings that it chose, classes, log entries.
    EngineDescribed {
        /// The engine that was recognised in a user's script; none where the run's specification names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<Engine>,
        /// Facts by name, in the engine's own words.
        facts: BTreeMap<String, String>,
    },
    /// A fact that cannot be observed in this release of the engine.
    NotObserved {
        /// Name of the fact that was not observed.
        what: String,
        /// Reason: the attribute or function that is missing.
        why: String,
    },
    /// The loss scale that a step was taken with, once it is over.
    LossScaled {
        /// Optimizer step.
        step: usize,
        /// The scale.
        scale: f64,
        /// True if the engine saw an overflow, and skipped the step.
        overflow: bool,
    },
    /// The microbatches of a step after whose backward the engine called an optimizer; none if it called none.
    OptimizerCalled {
        /// Optimizer step.
        step: usize,
        /// The microbatches, ascending.
        microbatches: Vec<usize>,
    },
    /// The parameters that the forward of a microbatch used, compared with those that the step before it left.
    /// Only of engines that gather parameters for forward.
    ForwardUsed {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
        /// Parameters with elements that differ.
        differing: Vec<Differing>,
    },
    /// The global norm of the gradient as the engine computed it, before clipping.
    GradientNorm {
        /// Optimizer step.
        step: usize,
        /// The norm; none when it is not finite.
        norm: Option<f64>,
        /// The norm to which the engine clips the gradient; 0 for no clipping.
        limit: f64,
    },
    /// A phase begins.
    PhaseEntered {
        /// Optimizer step.
        step: usize,
        /// Microbatch; for phases after the gradient accumulation boundary that of the boundary.
        microbatch: usize,
        /// The phase.
        phase: Phase,
    },
    /// A backward of a user's script is over: the rank is in the script's own code again.
    BackwardEnded {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
    },
    /// An optimizer of a user's script has stepped.
    StepTaken {
        /// Optimizer step.
        step: usize,
        /// True if no other optimizer is to step before the step is over.
        is_last: bool,
    },
    /// The collectives that a rank of a user's script has issued so far, told when it has said nothing else for a
    /// while.
    CollectivesIssued {
        /// The process groups of the rank.
        groups: Vec<IssuedCollectives>,
    },
    /// The loss of a microbatch, as the engine was given it.
    Loss {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
        /// The loss; none when it is not finite.
        value: Option<f64>,
    },
    /// The weights of the elements of a loss in what went backward, term by term.
    LossWeighed(LossWeighed),
    /// A call has clipped gradients of a user's script by their norm.
    GradientsClipped(GradientsClipped),
    /// A call of a user's script has clipped gradients with which no optimizer stepped.
    ClippedInVain(ClippedInVain),
    /// An optimizer of a user's script steps.
    OptimizerStepped(OptimizerStepped),
    /// Elements of half-precision parameters were compared before and after a step of an optimizer.
    UpdatesRounded(UpdatesRounded),
    /// Numbers that replicas of a parameter, or of a shard of it, have in common, by parameter index; none for a shard of
    /// which there is one alone.
    ParametersDigested {
        /// The optimizer step after which they were taken; none before the first.
        step: Option<usize>,
        /// The digests.
        digests: Vec<Option<f64>>,
        /// Number of the shard that each is of: 0 for a whole parameter. Empty where all are of whole ones.
        #[serde(default)]
        shards: Vec<usize>,
    },
    /// Blocks of a user's model that ran in forward, of which no backward of the step has reached a parameter.
    BlocksUnreached {
        /// Optimizer step.
        step: usize,
        /// The blocks.
        blocks: Vec<Block>,
    },
    /// Gradients of the first step that later ones had not cleared when an optimizer consumed them.
    GradientsLeft {
        /// Optimizer step in which they were consumed.
        step: usize,
        /// Parameters, and the weight of their old gradients.
        params: Vec<Left>,
    },
    /// A step of a user's script is over.
    StepEnded {
        /// Optimizer step.
        step: usize,
        /// Number of its microbatches.
        microbatches: usize,
    },
    /// A user's script has cleared the gradients of a microbatch on purpose: no update has them.
    MicrobatchSetAside {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
        /// Reason for it.
        why: Aside,
    },
    /// A user's script has cleared the gradients of all microbatches of a step without stepping; the
    /// step began again.
    WindowGivenUp {
        /// Optimizer step.
        step: usize,
        /// Number of microbatches.
        microbatches: usize,
    },
    /// An engine of a user's script made something else of whole gradients, before an optimizer consumed
    /// them.
    GradientsTransformed {
        /// Optimizer step.
        step: usize,
        /// Microbatch whose backward was the last one before.
        microbatch: usize,
        /// Kind of the transformation.
        how: Transform,
    },
    /// Gradients that a rank of a user's script had accumulated changed between two backwards, outside of both.
    GradientsChanged {
        /// Optimizer step.
        step: usize,
        /// Microbatch of the first of the two backwards.
        microbatch: usize,
        /// Parameters (indices) whose gradients changed.
        params: Vec<usize>,
    },
    /// Facts about a user's script that gradients do not show.
    ScriptRemarked(Remarks),
    /// The autograd graph of a microbatch's loss, before backward.
    GraphWalked {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
        /// Number of `AccumulateGrad` nodes reached.
        accumulate_grad_nodes: usize,
        /// Parameters (indices) that the graph reaches.
        params: Vec<usize>,
    },
    /// Number of times that each parameter's gradient hook fired during the backward of a
    /// microbatch.
    HooksFired {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
        /// Number of firings, by parameter index.
        fired: Vec<u32>,
        /// Number of gradients that autograd delivered, by parameter index; none if that was not
        /// watched.
        arrived: Option<Vec<u32>>,
    },
    /// A bucket is about to be reduced.
    BucketFlushed {
        /// Optimizer step.
        step: usize,
        /// Microbatch.
        microbatch: usize,
        /// Number of this flush within the step.
        flush: usize,
        /// Reason for the flush.
        reason: FlushReason,
        /// Number of elements in the bucket.
        elements: usize,
        /// Capacity in elements.
        capacity: usize,
        /// Parameters (indices) in the bucket, in the order in which they were put there.
        params: Vec<usize>,
    },
    /// A collective is about to be issued, after the ranks have agreed on what it is.
    CollectiveEntered {
        /// Sequence number, the same on all ranks.
        sequence: u64,
        /// The operation.
        op: CollectiveOp,
        /// Element type on the wire: a gradient's dtype, `int64` for digests, or `fp64` for norms.
        dtype: String,
        /// Number of elements that each rank puts in.
        numel: usize,
    },
    /// The ranks were about to issue different collectives; none was issued.
    CollectiveMismatch {
        /// Sequence number.
        sequence: u64,
        /// Collective that each rank announced, by rank.
        announced: Vec<String>,
    },
    /// Content of a buffer at a point of the gradient's journey.
    Buffer {
        /// Optimizer step; none before the first.
        step: Option<usize>,
        /// Microbatch, for points inside the accumulation.
        microbatch: Option<usize>,
        /// Point of the gradient's journey.
        point: Point,
        /// Name of the layout that maps the elements to parameters.
        layout: LayoutName,
        /// The elements.
        payload: Payload,
    },
    /// Digests of a step's buffers as all-gathered in band, over the engine's own process group.
    DigestsGathered {
        /// Optimizer step.
        step: usize,
        /// For each rank the [`super::combined_digest`] of its [`Event::Buffer`]s since the last
        /// gathering. Empty in a trace where they are those of the first rank in this step.
        digests: Arc<Vec<String>>,
    },
    /// Duration of a step, without the time for making its data.
    StepTimed {
        /// Optimizer step.
        step: usize,
        /// Nanoseconds until the engine's step was over.
        engine_ns: u64,
        /// Nanoseconds until the rank was done with the step, its observation included.
        total_ns: u64,
    },
    /// The rank cannot go on.
    Failed {
        /// Message of the failure, in the engine's own words.
        message: String,
    },
    /// The rank has done all its work. Always the last event of a rank.
    Finished,
}

/// A frame of a Python stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Frame {
    /// File, without what is private in its path: relative to the script's working directory, to the
    /// directory of packages or to that of the standard library, or its name alone.
    pub file: String,
    /// Line, from 1; 0 where it is not known.
    pub line: usize,
    /// Name of the function.
    pub function: String,
    /// True if the file is the user's own code: no package, and not the standard library.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_own: bool,
}

impl Frame {
    /// The place in words: `train.py:57 (load)`.
    pub fn place(&self) -> String {
        format!("{}:{} ({})", self.file, self.line, self.function)
    }
}

/// A parameter as the engine holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ParamInfo {
    /// Dotted name.
    pub name: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// True if the parameter requires a gradient.
    pub trainable: bool,
    /// Ranks that have the parameter, as tensor parallelism leaves it; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<usize>,
}

/// Outcome of a process that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The process exited with this code.
    Code(i32),
    /// The process was ended by this signal.
    Signal(i32),
    /// The process was ended by zprobe, because the run was over.
    Reaped,
    /// The process ended and zprobe, which did not start it, does not know how.
    Unseen,
    /// The process ended together with the launcher that had started it, which this signal ended.
    WithLauncher(i32),
    /// Its agent was lost, so that nothing more is known of it.
    Lost,
}

impl Outcome {
    /// The end of a process, or of its launcher, by a signal, in words; none for other ends.
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

    /// The outcome that counts among several commands: the first that is not a success. A command that zprobe had to kill
    /// has none. `known` is that of the commands before `next`, if there were any.
    pub fn of_commands(known: Option<Option<Self>>, next: Option<Self>) -> Option<Self> {
        known.filter(|known| *known != Some(Self::Code(0))).unwrap_or(next)
    }
}

/// The elements of a parameter that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Differing {
    /// Index of the parameter.
    pub param: usize,
    /// Number of these elements.
    pub elements: usize,
    /// Index of the first of them in the parameter.
    pub first: usize,
}

named_enum! {
    /// Kind of violation in a line on the event channel of a rank.
    pub enum Violation {
        /// The line is not JSON.
        NotJson = "not-json",
        /// The line is JSON but no record of this protocol version.
        NotARecord = "not-a-record",
        /// The event points outside the run: a step, a microbatch or a size that it does not have.
        Implausible = "implausible",
        /// The record says that it comes from another rank or another run.
        WrongSender = "wrong-sender",
        /// The record's sequence number does not follow the one before.
        OutOfSequence = "out-of-sequence",
        /// The line does not end within the size limit.
        TooLong = "too-long",
        /// The record came after the rank's `finished`.
        AfterFinished = "after-finished",
        /// The event is one that only the launcher may emit.
        LauncherEvent = "launcher-event",
    }
}

named_enum! {
    /// Reason why an agent counts as lost.
    pub enum AgentLoss {
        /// The agent has closed the connection: its process has ended.
        Closed = "closed",
        /// The agent was silent for half the timeout of the run: its machine is down, or out of reach.
        Silent = "silent",
        /// The agent said something that agents do not say.
        Garbled = "garbled",
    }
}

named_enum! {
    /// Reason why a script clears gradients of a step on purpose.
    pub enum Aside {
        /// The parameters were changed before the next backward, as by sharpness-aware minimisation.
        ParametersChanged = "parameters-changed",
        /// The backward was one for the gradient of an input, as for an adversarial example.
        InputGradient = "input-gradient",
    }
}

named_enum! {
    /// Transformation of a gradient, of which every element depends on all others.
    pub enum Transform {
        /// The matrix was orthogonalised, as by Muon.
        Orthogonalised = "orthogonalised",
    }
}

named_enum! {
    /// Part of the model that a buffer holds.
    pub enum LayoutName {
        /// Every parameter.
        Full = "full",
        /// The partition that this rank owns.
        Partition = "partition",
    }
}

named_enum! {
    /// A phase of the step.
    pub enum Phase {
        /// Forward.
        Forward = "forward",
        /// Backward, hooks included.
        Backward = "backward",
        /// Gradients are added to the accumulator.
        Accumulate = "accumulate",
        /// Reduction at the gradient accumulation boundary.
        Reduce = "reduce",
        /// The inner optimizer's step.
        OptimizerStep = "optimizer-step",
        /// All-gather of updated parameters.
        AllGather = "all-gather",
        /// The in-band exchange of digests.
        Digests = "digests",
    }
}

named_enum! {
    /// Reason for which a bucket was flushed.
    pub enum FlushReason {
        /// The next parameter did not fit.
        Full = "full",
        /// A parameter larger than the bucket is reduced by itself.
        Oversized = "oversized",
        /// The gradient accumulation boundary was reached.
        Boundary = "boundary",
    }
}

named_enum! {
    /// A collective operation.
    pub enum CollectiveOp {
        /// Sum over ranks, on every rank.
        AllReduce = "all-reduce",
        /// Concatenation over ranks, on every rank.
        AllGather = "all-gather",
        /// Data of one rank, on every rank.
        Broadcast = "broadcast",
        /// Sum over ranks, on one rank.
        Reduce = "reduce",
        /// Sum over ranks, a part of it on each rank.
        ReduceScatter = "reduce-scatter",
    }
}
