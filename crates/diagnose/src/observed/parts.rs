//! Types into which the events of a trace are sorted.

use std::collections::BTreeMap;

use zprobe_model::trace::{
    AgentLoss, CollectiveOp, Event, FlushReason, Frame, LayoutName, Meeting, Outcome, Payload,
    Point, Violation, Waiting,
};

/// A buffer as one rank recorded it.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// Rank.
    pub rank: usize,
    /// Optimizer step; none before the first.
    pub step: Option<usize>,
    /// Microbatch, inside the accumulation.
    pub microbatch: Option<usize>,
    /// Point of the journey.
    pub point: Point,
    /// Part of the model that it holds.
    pub layout: LayoutName,
    /// The elements.
    pub payload: &'a Payload,
    /// Number of this buffer among its rank's.
    pub(super) ordinal: usize,
}

impl Buffer<'_> {
    /// True if both buffers have the same number on their ranks.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal
    }
}

/// Key of a backward of a rank, in the order of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackwardAt {
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number among the backwards of the microbatch.
    pub part: usize,
    /// Rank.
    pub rank: usize,
}

/// A backward on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// `AccumulateGrad` nodes in the graph.
    pub accumulate_grad_nodes: usize,
    /// Parameters that the graph reaches.
    pub reached: &'a [usize],
    /// Firings by parameter; none where no hooks were reported.
    pub fired: Option<&'a [u32]>,
    /// Gradients that autograd delivered, by parameter; none where that was not watched.
    pub arrived: Option<&'a [u32]>,
}

impl Backward<'_> {
    /// Parameters that autograd reached without their hook firing. A backward that failed on its
    /// way did not reach all that its graph has.
    pub fn silent(&self) -> Vec<usize> {
        if self.fired.is_none() {
            return Vec::new();
        }
        let is_silent = |&param: &usize| self.arrivals(param) > 0 && self.firings(param) == 0;
        self.reached.iter().copied().filter(is_silent).collect()
    }

    /// Parameters whose hook fired more often than gradients arrived.
    pub fn repeated(&self) -> Vec<usize> {
        let is_repeated = |&param: &usize| self.firings(param) > self.arrivals(param);
        self.reached.iter().copied().filter(is_repeated).collect()
    }

    /// Parameters to which autograd delivered a gradient; of hooks alone it is known where they fired.
    pub fn delivered(&self) -> impl Iterator<Item = usize> {
        let counts = self.arrived.or(self.fired).unwrap_or_default().iter().enumerate();
        counts.filter(|(_, count)| **count > 0).map(|(param, _)| param)
    }

    /// Number of times that the hook of a parameter fired.
    pub fn firings(&self, param: usize) -> u32 {
        count(self.fired, param)
    }

    /// Number of gradients that autograd delivered to a parameter that the graph reaches: one,
    /// where that was not watched.
    pub fn arrivals(&self, param: usize) -> u32 {
        if self.arrived.is_none() { 1 } else { count(self.arrived, param) }
    }
}

fn count(list: Option<&[u32]>, param: usize) -> u32 {
    list.and_then(|list| list.get(param)).copied().unwrap_or(0)
}

/// A bucket flush on one rank.
#[derive(Clone, Copy, Debug)]
pub struct BucketFlush<'a> {
    /// Rank.
    pub rank: usize,
    /// Optimizer step.
    pub step: usize,
    /// Microbatch.
    pub microbatch: usize,
    /// Number within the step.
    pub flush: usize,
    /// Reason for the flush.
    pub reason: FlushReason,
    /// Elements.
    pub elements: usize,
    /// Capacity.
    pub capacity: usize,
    /// Parameters.
    pub params: &'a [usize],
}

/// A violation of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Broken<'a> {
    /// Rank; none for the process that hosts the ranks.
    pub rank: Option<usize>,
    /// Kind of the violation.
    pub violation: Violation,
    /// Start of the line.
    pub line: &'a str,
}

/// The silence that ended a run.
#[derive(Clone, Debug)]
pub struct TimedOut {
    /// Ranks that the watchdog named, and the meeting that each was in.
    pub named: Vec<(usize, Option<Meeting>)>,
    /// Ranks that waited for others.
    pub waiting: Vec<Waiting>,
    /// Time limit of the watchdog, in seconds.
    pub timeout_s: u64,
}

/// Facts about the process of one rank.
#[derive(Clone, Debug, Default)]
pub struct Process<'a> {
    /// Process id.
    pub pid: Option<u32>,
    /// Outcome of the process; none if its end was not recorded.
    pub outcome: Option<Outcome>,
    /// Loss of the agent that had started it: name of the machine, and reason.
    pub lost: Option<(&'a str, AgentLoss)>,
    /// True if its last event was [`Event::Finished`].
    pub finished: bool,
    /// True if it was stopped by a signal when it was ended because of its silence.
    pub is_stopped: bool,
    /// Its last event.
    pub last: Option<&'a Event>,
    /// The last [`Event::PhaseEntered`] of the rank.
    pub last_phase: Option<&'a Event>,
    /// The collectives it entered, in order.
    pub collectives: Vec<Collective<'a>>,
    /// Its own account of a failure.
    pub failure: Option<&'a str>,
    /// The end of its standard error.
    pub stderr: Option<&'a str>,
    /// Python stacks of the process, by number of the thread: 0 for the main one.
    pub stacks: BTreeMap<usize, &'a [Frame]>,
    /// Number of buffers that it recorded so far.
    pub(super) buffers: usize,
    /// Versions it reported.
    pub versions: Option<&'a BTreeMap<String, String>>,
}

/// A step's digests as one rank all-gathered them.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// Rank that gathered them.
    pub rank: usize,
    /// Optimizer step.
    pub step: usize,
    /// Digests by source rank.
    pub in_band: &'a [String],
}

/// A collective that a rank was about to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective<'a> {
    /// Its number on this rank.
    pub sequence: u64,
    /// The operation.
    pub op: CollectiveOp,
    /// Element type on the wire.
    pub dtype: &'a str,
    /// Elements that the rank puts in.
    pub numel: usize,
}

/// The loss scale that one rank took a step with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaled {
    /// The scale.
    pub scale: f64,
    /// True if the rank saw an overflow, and skipped the step.
    pub overflow: bool,
}

/// The global norm of a step's gradient as one rank's engine computed it, before clipping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// The norm; none when it is not finite.
    pub norm: Option<f64>,
    /// The norm to which the engine clips; 0 for no clipping.
    pub limit: f64,
}
