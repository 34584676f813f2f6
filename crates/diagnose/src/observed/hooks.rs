//! The backwards of all ranks, with the gradient hooks that fired in them and the buckets that they filled.

use std::collections::BTreeMap;

use zprobe_model::trace::{Event, FlushReason};

/// The backwards and bucket flushes of all ranks.
#[derive(Debug, Default)]
pub struct GradientHooks<'a> {
    /// All backwards of all ranks.
    pub backwards: BTreeMap<BackwardAt, Backward<'a>>,
    /// All bucket flushes.
    pub flushes: Vec<BucketFlush<'a>>,
}

/// The time and rank of a backward. Keys are ordered as in the run.
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
    /// The number of times that the hook of each parameter fired; `None` if the engine reported no hooks.
    pub fired: Option<&'a [u32]>,
    /// The number of gradients that autograd delivered to each parameter; `None` if delivery was not watched.
    pub arrived: Option<&'a [u32]>,
}

impl Backward<'_> {
    /// Returns the parameters that got a gradient from autograd, but whose hook did not fire. A backward that failed
    /// half-way did not reach all parameters of its graph.
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

    /// True if it is known to which parameters autograd delivered a gradient. In the first step of a script, a rank
    /// that fails does not know the numbers of its parameters yet.
    pub fn is_known(&self) -> bool {
        self.arrived.or(self.fired).is_some()
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

impl<'a> GradientHooks<'a> {
    /// Stores an event of a rank, if the event is about a backward, its hooks or a bucket.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::GraphWalked { step, microbatch, accumulate_grad_nodes, params } => {
                let backward = Backward {
                    accumulate_grad_nodes: *accumulate_grad_nodes,
                    reached: params,
                    fired: None,
                    arrived: None,
                };
                let part = self.backwards_of(*step, *microbatch, rank).count();
                let at = BackwardAt { step: *step, microbatch: *microbatch, part, rank };
                self.backwards.insert(at, backward);
            }
            Event::HooksFired { step, microbatch, fired, arrived } => {
                let last = self.backwards_of(*step, *microbatch, rank).map(|(at, _)| *at).last();
                if let Some(backward) = last.and_then(|at| self.backwards.get_mut(&at)) {
                    backward.fired = Some(fired);
                    backward.arrived = arrived.as_deref();
                }
            }
            Event::BucketFlushed {
                step,
                microbatch,
                flush,
                reason,
                elements,
                capacity,
                params,
            } => {
                self.flushes.push(BucketFlush {
                    rank,
                    step: *step,
                    microbatch: *microbatch,
                    flush: *flush,
                    reason: *reason,
                    elements: *elements,
                    capacity: *capacity,
                    params,
                });
            }
            _ => {}
        }
    }

    /// Sorts the flushes of all ranks into the order of the run.
    pub(super) fn sort(&mut self) {
        self.flushes.sort_by_key(|f| (f.step, f.microbatch, f.flush, f.rank));
    }

    /// Iterates over the backwards of one microbatch on one rank, in order.
    pub fn backwards_of(
        &self,
        step: usize,
        microbatch: usize,
        rank: usize,
    ) -> impl Iterator<Item = (&BackwardAt, &Backward<'a>)> {
        let at = move |part| BackwardAt { step, microbatch, part, rank };
        (0..).map_while(move |part| self.backwards.get_key_value(&at(part)))
    }
}
