//! The exchanges between ranks: the collectives that they entered, and the digests that they gathered.

use std::collections::BTreeMap;

use zprobe_model::trace::{CollectiveOp, Event, combined_digest};

/// The collectives and gathered digests of all ranks.
#[derive(Debug)]
pub struct Exchanges<'a> {
    /// The collectives that each rank entered, in order, indexed by rank.
    pub entered: Vec<Vec<EnteredCollective<'a>>>,
    /// The announcements of all ranks before a collective on which they disagreed, by sequence number.
    pub mismatches: BTreeMap<u64, &'a [String]>,
    /// The digests that ranks gathered over the process group (*in band*).
    pub gathered: Vec<Gathered<'a>>,
    /// The combined digests of the buffers that arrived over the event channel (*out of band*), by (rank, step in
    /// which the rank gathered digests).
    pub out_of_band: BTreeMap<(usize, usize), String>,
    /// The digests of the buffers that each rank recorded since it last gathered digests, indexed by rank.
    pending: Vec<Vec<&'a str>>,
}

/// A collective that a rank was about to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnteredCollective<'a> {
    /// The number of the collective on this rank.
    pub sequence: u64,
    /// The operation of the collective.
    pub op: CollectiveOp,
    /// The element type on the wire.
    pub dtype: &'a str,
    /// The number of elements that the rank contributes.
    pub numel: usize,
}

/// The digests of all ranks that a single rank received in a step, by an all-gather.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// The rank that gathered the digests.
    pub rank: usize,
    /// The index of the optimizer step.
    pub step: usize,
    /// The digests, indexed by source rank.
    pub in_band: &'a [String],
}

impl<'a> Exchanges<'a> {
    /// Creates the empty exchanges of this number of ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            entered: vec![Vec::new(); ranks],
            mismatches: BTreeMap::new(),
            gathered: Vec::new(),
            out_of_band: BTreeMap::new(),
            pending: vec![Vec::new(); ranks],
        }
    }

    /// Stores an event of a rank, if the event is about a collective or a digest.
    pub(super) fn see(&mut self, rank: usize, event: &'a Event) {
        match event {
            Event::CollectiveEntered { sequence, op, dtype, numel } => {
                let (sequence, op, numel) = (*sequence, *op, *numel);
                self.entered[rank].push(EnteredCollective { sequence, op, dtype, numel });
            }
            Event::CollectiveMismatch { sequence, announced } => {
                self.mismatches.insert(*sequence, announced);
            }
            Event::Buffer { payload, .. } => self.pending[rank].push(&payload.digest),
            Event::DigestsGathered { step, digests } => {
                let pending = std::mem::take(&mut self.pending[rank]);
                self.out_of_band.insert((rank, *step), combined_digest(pending));
                self.gathered.push(Gathered { rank, step: *step, in_band: digests });
            }
            _ => {}
        }
    }

    /// Sorts the gathered digests by step and rank.
    pub(super) fn sort(&mut self) {
        self.gathered.sort_by_key(|gathered| (gathered.step, gathered.rank));
    }
}
