//! The events of a run: one enum for all engines.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AgentLoss, Aside, Block, ClippedInVain, CollectiveOp, Differing, FlushReason, Frame,
    GradientsClipped, IssuedCollectives, LayoutName, Left, LossWeighed, OptimizerStepped, Outcome,
    ParamInfo, Payload, Phase, Remarks, StateCompared, Transform, UpdatesRounded, Violation,
    Waiting,
};
use crate::spec::{Backend, Device, Dtype, Engine, Point, RunSpec, plan::Segment};

/// The name in [`Event::NotObserved`] for memory that could not be poisoned, that is, filled with NaN.
pub const UNSET_MEMORY: &str = "memory that is read before it is written";

/// The name in [`Event::NotObserved`] for everything that a rank of a script does once it is no longer watched.
pub const REST_OF_SCRIPT: &str = "the rest of the script";

/// An event of a run.
///
/// The launcher emits the first group of events, and ranks emit the second. `step` and `microbatch` count from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Event {
    /// The launcher is about to start the ranks. This is always the first record of a trace.
    RunStarted {
        /// The specification of the run.
        spec: Box<RunSpec>,
        /// The version of zprobe that records the run.
        zprobe: String,
    },
    /// Another agent takes part in the run. An agent is a zprobe process that starts some of the ranks, or that
    /// starts a command whose processes join the run.
    AgentJoined {
        /// The number of the agent; the agent of rank 0 has number 0.
        agent: usize,
        /// The host name of the agent's machine.
        machine: String,
        /// The first rank that the agent starts.
        first_rank: usize,
        /// The number of ranks that the agent starts; 0 for a command whose processes have not joined yet.
        ranks: usize,
        /// The time by which the clock of the agent's machine is ahead of the clock of rank 0's machine, in
        /// nanoseconds, measured when the agents connected.
        clock_ns: i64,
    },
    /// An agent is gone or cannot be reached, so that the state of its ranks is unknown from now on.
    AgentLost {
        /// The number of the lost agent.
        agent: usize,
        /// The host name of the agent's machine.
        machine: String,
        /// The reason why the agent counts as lost.
        why: AgentLoss,
    },
    /// The process of a rank exists.
    RankSpawned {
        /// The number of the rank.
        rank: usize,
        /// The id of the rank's process.
        pid: u32,
        /// The number of the agent whose command has started the process, if the run has several agents.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<usize>,
    },
    /// The process of a rank has ended.
    RankExited {
        /// The number of the rank.
        rank: usize,
        /// The outcome of the rank's process.
        outcome: Outcome,
    },
    /// A rank or a host wrote a line on its channel that violates the protocol.
    ProtocolViolated {
        /// The number of the rank; `None` for the process that hosts the ranks.
        rank: Option<usize>,
        /// The kind of the violation.
        violation: Violation,
        /// The start of the invalid line.
        line: String,
    },
    /// The watchdog ended the run, because ranks sent no event for `timeout_s` seconds.
    TimedOut {
        /// The ranks that were silent for that long, had not finished, and did not wait for another rank. If every
        /// rank that had not finished waited for another rank, the list has all these ranks.
        silent: Vec<usize>,
        /// The time limit, in seconds.
        timeout_s: u64,
        /// The ranks that waited for others, with their meetings.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<Waiting>,
    },
    /// The process of a silent rank is stopped by SIGSTOP or by a debugger, according to its process state.
    RankStopped {
        /// The number of the rank.
        rank: usize,
    },
    /// The user interrupted the run with SIGINT, SIGTERM or SIGHUP.
    Interrupted,
    /// The user's command, whose processes joined the run as its ranks, has ended.
    CommandEnded {
        /// The outcome of the command; `None` if zprobe had to kill the command.
        outcome: Option<Outcome>,
    },
    /// The last lines that a rank wrote to its standard error, recorded if the rank did not end well.
    Stderr {
        /// The number of the rank; `None` for the process that hosts the ranks.
        rank: Option<usize>,
        /// The last lines of standard error.
        tail: String,
    },
    /// A Python stack of a rank of a user's script, taken when the rank crashed, or before it was ended because it
    /// hung.
    StackTaken {
        /// The number of the rank.
        rank: usize,
        /// The number of the thread: 0 for the main thread.
        thread: usize,
        /// The frames of the stack, the innermost frame first.
        frames: Vec<Frame>,
    },

    /// A rank, or a host on behalf of all ranks that it is going to fork, is about to import software. The import may
    /// take long.
    Importing {
        /// The name of the package or of the engine.
        what: String,
    },
    /// A process of the user's command has begun its first backward, and joins the run as a rank.
    RankJoined {
        /// The number of ranks that the process reports.
        world_size: usize,
        /// The device of the rank's gradients.
        kind: Device,
        /// The backend of the default process group.
        backend: Backend,
    },
    /// The joined ranks have numbered the microbatches of a step. The event has the result as one of them knows it.
    RanksAgreed {
        /// The largest number of microbatches of any rank in the first step.
        microbatches: usize,
        /// The number of gradient codes (distinct test values) reserved for the microbatches of the first step.
        reserved: usize,
        /// The narrowest dtype of the gradients that autograd delivered.
        dtype: Dtype,
    },
    /// A rank has started, and reports the software that it really runs.
    RankReady {
        /// The name and version of each relevant package (`torch`, `zprobe-rank`, …).
        versions: BTreeMap<String, String>,
        /// The device of the model, for example `cpu` or `cuda:0`.
        device: String,
    },
    /// The parameters of the model, in flat order.
    Model {
        /// The parameters, in flat order.
        params: Vec<ParamInfo>,
    },
    /// A layout: the mapping from the elements of a buffer to parameters.
    Layout {
        /// The name by which [`Event::Buffer`] refers to the layout.
        layout: LayoutName,
        /// The segments of the buffer, in the order in which they lie in the buffer.
        segments: Vec<Segment>,
        /// True if the segments are the recorded samples of a buffer that is too large. The samples are pieces of the
        /// segments of the layout with the same name and without this flag, which comes first.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sampled: bool,
    },
    /// The optimizer that the engine really uses.
    OptimizerChosen {
        /// The class that wraps the inner optimizer.
        class: String,
        /// The name of the inner optimizer.
        inner: String,
    },
    /// Facts that the engine states about itself: chosen settings, classes, log entries.
    EngineDescribed {
        /// The engine that was recognised in a user's script; `None` if the run's specification names the engine.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<Engine>,
        /// The facts by name, in the engine's own words.
        facts: BTreeMap<String, String>,
    },
    /// A fact that cannot be observed in this release of the engine.
    NotObserved {
        /// The name of the fact that was not observed.
        what: String,
        /// The reason, such as a missing attribute or function.
        why: String,
    },
    /// The loss scale with which a step was taken, reported after the step.
    LossScaled {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The loss scale of the step.
        scale: f64,
        /// True if the engine saw an overflow and skipped the step.
        overflow: bool,
    },
    /// The microbatches of a step whose backward was followed by a call of an optimizer.
    OptimizerCalled {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The numbers of the microbatches, ascending; empty if the engine called no optimizer.
        microbatches: Vec<usize>,
    },
    /// A comparison of the parameters that the forward of a microbatch used with the parameters that the previous
    /// step left. Only emitted for engines that gather parameters for the forward.
    ForwardUsed {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The parameters with differing elements.
        differing: Vec<Differing>,
    },
    /// A comparison of the parameters that the backward of a microbatch used with the parameters that the previous
    /// step left. Only emitted for engines that gather parameters, and only if a parameter differs.
    BackwardUsed {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The parameters with differing elements.
        differing: Vec<Differing>,
    },
    /// An optimizer step, and the code up to the next forward, changed no sampled element of some parameters, although
    /// the optimizer got gradients of them and changed other parameters of the same group.
    ParametersUnmoved {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The indices of the parameters.
        params: Vec<usize>,
    },
    /// After an optimizer step, and before the next forward, the script multiplied all parameters of the rank's
    /// optimizers by a common factor.
    ParametersMultiplied {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The factor, which other changes of the parameters may blur.
        factor: f64,
    },
    /// The engine goes on from a checkpoint: the comparison of the rank's training state before the checkpoint was
    /// saved with the state after a new engine has loaded the checkpoint.
    CheckpointLoaded {
        /// The number of the optimizer step, from 0, before which the checkpoint was saved and loaded.
        step: usize,
        /// The compared kinds of state, also those without a difference.
        states: Vec<StateCompared>,
    },
    /// The global norm of the gradient before clipping, as the engine computed it.
    GradientNorm {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The norm; `None` if it is not finite.
        norm: Option<f64>,
        /// The norm to which the engine clips the gradient; 0 without clipping.
        limit: f64,
    },
    /// A phase of the step begins.
    PhaseEntered {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0. For a phase after the gradient accumulation
        /// boundary, this is the microbatch of the boundary.
        microbatch: usize,
        /// The phase that begins.
        phase: Phase,
    },
    /// A backward of a user's script has ended, and the rank is in the script's own code again.
    BackwardEnded {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
    },
    /// An optimizer of a user's script has stepped.
    StepTaken {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// True if no other optimizer is to step before the step is over.
        is_last: bool,
    },
    /// The collectives that a rank of a user's script has issued so far. Emitted if the rank has emitted no other
    /// event for a while.
    CollectivesIssued {
        /// The issued collectives of each process group of the rank.
        groups: Vec<IssuedCollectives>,
    },
    /// The loss of a microbatch, as the engine received it.
    Loss {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The value of the loss; `None` if it is not finite.
        value: Option<f64>,
    },
    /// The weight of each element of a loss in the backward, term by term.
    LossWeighed(LossWeighed),
    /// A call has clipped gradients of a user's script by their norm.
    GradientsClipped(GradientsClipped),
    /// A call of a user's script has clipped gradients without the intended effect.
    ClippedInVain(ClippedInVain),
    /// An optimizer of a user's script is about to step.
    OptimizerStepped(OptimizerStepped),
    /// Elements of half-precision parameters were compared before and after a step of an optimizer.
    UpdatesRounded(UpdatesRounded),
    /// Digests of parameters, by parameter index. Replicas of a parameter, or of a shard of it, must have equal
    /// digests.
    ParametersDigested {
        /// The optimizer step after which the digests were taken; `None` before the first step.
        step: Option<usize>,
        /// The digest of each parameter; `None` for a shard that exists only once.
        digests: Vec<Option<f64>>,
        /// The number of the shard that each digest is of, with 0 for a whole parameter. Empty if all digests are of
        /// whole parameters.
        #[serde(default)]
        shards: Vec<usize>,
    },
    /// Blocks of a user's model that ran in the forward, and whose parameters no backward of the step has reached.
    BlocksUnreached {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The blocks that no backward has reached.
        blocks: Vec<Block>,
    },
    /// Gradients of the first step that later steps had not cleared when an optimizer consumed them.
    GradientsLeft {
        /// The optimizer step in which the gradients were consumed.
        step: usize,
        /// The parameters, each with the weight of its old gradients.
        params: Vec<Left>,
    },
    /// A step of a user's script has ended.
    StepEnded {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of microbatches of the step.
        microbatches: usize,
    },
    /// A user's script has cleared the gradients of a microbatch on purpose, so that no update contains them.
    MicrobatchSetAside {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The reason why the script cleared the gradients.
        why: Aside,
    },
    /// A user's script has cleared the gradients of all microbatches of a step without stepping. The step began
    /// again.
    WindowGivenUp {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of microbatches whose gradients were cleared.
        microbatches: usize,
    },
    /// An engine has transformed whole gradients before an optimizer consumed them. In zprobe's own scripts, the
    /// identity stands in for the transformation.
    GradientsTransformed {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the last microbatch whose backward came before the transformation.
        microbatch: usize,
        /// The kind of the transformation.
        how: Transform,
    },
    /// Gradients that a rank of a user's script had accumulated changed between two backwards, outside of both.
    GradientsChanged {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch of the first of the two backwards.
        microbatch: usize,
        /// The indices of the parameters whose gradients changed.
        params: Vec<usize>,
    },
    /// Facts about a user's script that gradients do not show.
    ScriptRemarked(Box<Remarks>),
    /// The autograd graph of a microbatch's loss, before the backward.
    GraphWalked {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The number of `AccumulateGrad` nodes that the graph reaches.
        accumulate_grad_nodes: usize,
        /// The indices of the parameters that the graph reaches.
        params: Vec<usize>,
    },
    /// The number of times that the gradient hook of each parameter fired during the backward of a microbatch.
    HooksFired {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The number of hook firings, by parameter index.
        fired: Vec<u32>,
        /// The number of gradients that autograd delivered, by parameter index; `None` if the deliveries were not
        /// watched.
        arrived: Option<Vec<u32>>,
    },
    /// A bucket is about to be reduced.
    BucketFlushed {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The number of the microbatch within the step, from 0.
        microbatch: usize,
        /// The number of this flush within the step, from 0.
        flush: usize,
        /// The reason for the flush.
        reason: FlushReason,
        /// The number of elements in the bucket.
        elements: usize,
        /// The capacity of the bucket, in elements.
        capacity: usize,
        /// The indices of the parameters in the bucket, in the order in which they were added.
        params: Vec<usize>,
    },
    /// A collective is about to be issued, after the ranks have agreed on the kind and size of the collective.
    CollectiveEntered {
        /// The sequence number of the collective, which is the same on all ranks.
        sequence: u64,
        /// The operation of the collective.
        op: CollectiveOp,
        /// The element type of the transferred data: a gradient's dtype, `int64` for digests, or `fp64` for norms.
        dtype: String,
        /// The number of elements that each rank contributes.
        numel: usize,
    },
    /// The ranks were about to issue different collectives, so none was issued.
    CollectiveMismatch {
        /// The sequence number at which the ranks disagreed.
        sequence: u64,
        /// The collective that each rank announced, in the order of the ranks.
        announced: Vec<String>,
    },
    /// The content of a buffer at a point of the gradient's journey.
    Buffer {
        /// The number of the optimizer step, from 0; `None` before the first step.
        step: Option<usize>,
        /// The number of the microbatch within the step, from 0, for points inside the accumulation; `None` for other
        /// points.
        microbatch: Option<usize>,
        /// The point of the gradient's journey at which the buffer was read.
        point: Point,
        /// The name of the layout that maps the elements to parameters.
        layout: LayoutName,
        /// The elements of the buffer.
        payload: Payload,
    },
    /// The digests of a step's buffers, which ranks all-gather over the engine's own process group.
    DigestsGathered {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The [`super::combined_digest`] of each rank's [`Event::Buffer`]s since the last gathering, in the order of
        /// the ranks. Empty in a trace if the list equals the one that the first rank gathered in this step.
        digests: Arc<Vec<String>>,
    },
    /// The duration of a step, without the time for making its data.
    StepTimed {
        /// The number of the optimizer step, from 0.
        step: usize,
        /// The time until the engine's step was over, in nanoseconds.
        engine_ns: u64,
        /// The time until the rank was done with the step, including its observation, in nanoseconds.
        total_ns: u64,
    },
    /// The rank cannot continue because of a failure.
    Failed {
        /// The message of the failure, in the engine's own words.
        message: String,
    },
    /// The rank has done all its work. This is always the last event of a rank.
    Finished,
}
