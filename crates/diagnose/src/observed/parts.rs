//! The types into which the events of a trace are sorted.

use std::collections::BTreeMap;

use zprobe_model::trace::{
    AgentLoss, CollectiveOp, Event, FlushReason, Frame, LayoutName, Meeting, Outcome, Payload,
    Point, Violation, Waiting,
};

/// A buffer that one rank recorded.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// The rank that recorded the buffer.
    pub rank: usize,
    /// The index of the optimizer step; `None` before the first step.
    pub step: Option<usize>,
    /// The microbatch; `None` for points after the accumulation.
    pub microbatch: Option<usize>,
    /// The point of the journey at which the buffer was recorded.
    pub point: Point,
    /// The part of the model that the buffer holds.
    pub layout: LayoutName,
    /// The recorded elements.
    pub payload: &'a Payload,
    /// The index of this buffer among all buffers of its rank.
    pub(super) ordinal: usize,
}

impl Buffer<'_> {
    /// True if both buffers have the same index on their ranks.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal
    }
}

/// The key of a backward; keys are ordered as in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackwardAt {
    /// The index of the optimizer step.
    pub step: usize,
    /// The index of the microbatch in the step.
    pub microbatch: usize,
    /// The index of the backward among all backwards of the microbatch.
    pub part: usize,
    /// The rank that ran the backward.
    pub rank: usize,
}

/// One backward on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// The number of `AccumulateGrad` nodes in the graph.
    pub accumulate_grad_nodes: usize,
    /// The indices of the parameters that the graph reaches.
    pub reached: &'a [usize],
    /// The number of hook firings of each parameter; `None` if the engine reported no hooks.
    pub fired: Option<&'a [u32]>,
    /// The number of gradients that autograd delivered to each parameter; `None` if delivery was not watched.
    pub arrived: Option<&'a [u32]>,
}

impl Backward<'_> {
    /// Returns the parameters that got a gradient from autograd without a firing of their hook. A backward that
    /// failed half-way did not reach all parameters of its graph.
    pub fn silent(&self) -> Vec<usize> {
        if self.fired.is_none() {
            return Vec::new();
        }
        let is_silent = |&param: &usize| self.arrivals(param) > 0 && self.firings(param) == 0;
        self.reached.iter().copied().filter(is_silent).collect()
    }

    /// Returns the parameters whose hook fired more often than gradients arrived.
    pub fn repeated(&self) -> Vec<usize> {
        let is_repeated = |&param: &usize| self.firings(param) > self.arrivals(param);
        self.reached.iter().copied().filter(is_repeated).collect()
    }

    /// Iterates over the parameters to which autograd delivered a gradient. Where only hooks were watched, it
    /// iterates over the parameters whose hook fired.
    pub fn delivered(&self) -> impl Iterator<Item = usize> {
        let counts = self.arrived.or(self.fired).unwrap_or_default().iter().enumerate();
        counts.filter(|(_, count)| **count > 0).map(|(param, _)| param)
    }

    /// The number of times that the hook of a parameter fired.
    pub fn firings(&self, param: usize) -> u32 {
        count(self.fired, param)
    }

    /// The number of gradients that autograd delivered to a parameter in the graph; 1 if delivery was not watched.
    pub fn arrivals(&self, param: usize) -> u32 {
        if self.arrived.is_none() { 1 } else { count(self.arrived, param) }
    }
}

fn count(list: Option<&[u32]>, param: usize) -> u32 {
    list.and_then(|list| list.get(param)).copied().unwrap_or(0)
}

/// One bucket flush on one rank.
#[derive(Clone, Copy, Debug)]
pub struct BucketFlush<'a> {
    /// The rank that flushed the bucket.
    pub rank: usize,
    /// The index of the optimizer step.
    pub step: usize,
    /// The index of the microbatch in the step.
    pub microbatch: usize,
    /// The index of the flush within the step.
    pub flush: usize,
    /// The reason for the flush.
    pub reason: FlushReason,
    /// The number of elements in the bucket.
    pub elements: usize,
    /// The capacity of the bucket, in elements.
    pub capacity: usize,
    /// The indices of the parameters in the bucket.
    pub params: &'a [usize],
}

/// A violation of the rank protocol.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// The rank that wrote the line; `None` for the process that hosts the ranks.
    pub rank: Option<usize>,
    /// The kind of violation.
    pub violation: Violation,
}

/// The silence after which the watchdog ended a run.
#[derive(Clone, Debug)]
pub struct TimedOut {
    /// The ranks that the watchdog named, each with the meeting that it was in; `None` for a rank outside of any
    /// meeting.
    pub named: Vec<(usize, Option<Meeting>)>,
    /// The ranks that waited for others.
    pub waiting: Vec<Waiting>,
    /// The time limit of the watchdog, in seconds.
    pub timeout_s: u64,
}

/// The facts about the process of one rank.
#[derive(Clone, Debug, Default)]
pub struct Process<'a> {
    /// The process id.
    pub pid: Option<u32>,
    /// The outcome of the process; `None` if its end was not recorded.
    pub outcome: Option<Outcome>,
    /// The loss of the agent that had started the process, as (machine name, reason).
    pub lost: Option<(&'a str, AgentLoss)>,
    /// True if the last event of the process was [`Event::Finished`].
    pub finished: bool,
    /// True if a signal had stopped the process when it was ended for its silence.
    pub is_stopped: bool,
    /// The last event of the process.
    pub last: Option<&'a Event>,
    /// The last [`Event::PhaseEntered`] of the rank.
    pub last_phase: Option<&'a Event>,
    /// The collectives that the rank entered, in order.
    pub collectives: Vec<Collective<'a>>,
    /// The error message with which the rank reported a failure.
    pub failure: Option<&'a str>,
    /// The end of the standard error of the process.
    pub stderr: Option<&'a str>,
    /// The Python stacks of the process, by thread number; 0 is the main thread.
    pub stacks: BTreeMap<usize, &'a [Frame]>,
    /// The number of buffers that the rank has recorded so far.
    pub(super) buffers: usize,
    /// The software versions that the rank reported.
    pub versions: Option<&'a BTreeMap<String, String>>,
}

/// The digests of one step that one rank all-gathered.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// The rank that gathered the digests.
    pub rank: usize,
    /// The index of the optimizer step.
    pub step: usize,
    /// The digests, indexed by source rank.
    pub in_band: &'a [String],
}

/// A collective that a rank was about to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective<'a> {
    /// The number of the collective on this rank.
    pub sequence: u64,
    /// The operation of the collective.
    pub op: CollectiveOp,
    /// The element type on the wire.
    pub dtype: &'a str,
    /// The number of elements that the rank contributes.
    pub numel: usize,
}

/// The loss scale with which one rank took a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    /// The loss scale.
    pub scale: f64,
    /// True if the rank saw an overflow and skipped the step.
    pub overflow: bool,
}

/// The global norm of a step's gradient before clipping, as one rank's engine computed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The norm; `None` if it is not finite.
    pub norm: Option<f64>,
    /// The norm to which the engine clips; 0 for no clipping.
    pub limit: f64,
}
