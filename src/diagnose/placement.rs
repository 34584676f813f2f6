//! Who holds what: the fragments of parameters in each rank's partition, as the ranks described
//! them.
//!
//! Engines cut where they like: one flat order into equal parts, each parameter by itself, or not
//! at all. Nothing behind this point assumes how.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::spec::Plan;
use crate::spec::plan::Segment;
use crate::trace::LayoutName;

use super::observed::Observed;

/// A run of consecutive elements of one parameter inside a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Index of the parameter.
    pub param: usize,
    /// Its elements, in the flat order.
    pub flat: Range<usize>,
    /// Where it starts in the buffer.
    pub start: usize,
}

/// Consecutive elements of one parameter that the same ranks hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the parameter.
    pub param: usize,
    /// Its elements, in the flat order.
    pub flat: Range<usize>,
    /// Ranks that hold them; one that holds them twice is there twice.
    pub owners: Vec<usize>,
}

/// Who holds what.
pub struct Placement {
    /// By rank; none for a rank that never said.
    partitions: Vec<Option<Vec<Fragment>>>,
    /// Places of the flat order at which some partition is cut.
    cuts: BTreeSet<usize>,
}

impl Placement {
    /// Reads the partitions' layouts.
    pub fn new(observed: &Observed<'_>, plan: &Plan) -> Self {
        let partitions: Vec<Option<Vec<Fragment>>> = (0..observed.spec.world_size)
            .map(|rank| {
                let segments = observed.layouts.get(&(rank, LayoutName::Partition))?;
                Some(fragments(segments, plan))
            })
            .collect();
        let cuts = partitions
            .iter()
            .flatten()
            .flatten()
            .flat_map(|fragment| [fragment.flat.start, fragment.flat.end])
            .collect();
        Self { partitions, cuts }
    }

    /// What a rank's optimizer holds; none if it never said.
    pub fn partition(&self, rank: usize) -> Option<&[Fragment]> {
        self.partitions.get(rank)?.as_deref()
    }

    /// Elements that a rank's optimizer holds; none if it never said.
    pub fn owned(&self, rank: usize) -> Option<usize> {
        Some(self.partition(rank)?.iter().map(|fragment| fragment.flat.len()).sum())
    }

    /// Whether every rank said what it holds.
    pub fn is_complete(&self) -> bool {
        self.partitions.iter().all(Option::is_some)
    }

    /// Whether a step has a gradient for anything that a rank's optimizer holds; so it is assumed of
    /// a rank that never said what it holds.
    pub fn is_due(&self, plan: &Plan, step: usize, rank: usize, ga: usize) -> bool {
        let used = |param: usize| (0..ga).any(|m| plan.usage(param).uses(step, m, ga));
        self.partition(rank).is_none_or(|held| held.iter().any(|fragment| used(fragment.param)))
    }

    /// Whether every rank's optimizer holds the same.
    pub fn is_replicated(&self) -> bool {
        self.is_complete() && self.partitions.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Cuts a run of elements wherever some rank's partition is cut.
    pub fn cut(&self, fragment: Fragment) -> impl Iterator<Item = Fragment> + '_ {
        let Fragment { param, flat, start } = fragment;
        let inner = self.cuts.range(flat.start + 1..flat.end.max(flat.start + 1)).copied();
        let starts = std::iter::once(flat.start).chain(inner.clone());
        starts.zip(inner.chain([flat.end])).map(move |(first, end)| Fragment {
            param,
            flat: first..end,
            start: start + first - flat.start,
        })
    }

    /// Every trainable parameter, cut so that each part has the same owners throughout.
    pub fn spans(&self, plan: &Plan) -> Vec<Span> {
        let mut spans = Vec::new();
        for (param, place) in plan.params().iter().enumerate().filter(|(_, param)| param.trainable)
        {
            for Fragment { flat, .. } in self.cut(Fragment { param, flat: place.range(), start: 0 })
            {
                let holds = |fragment: &&Fragment| {
                    fragment.flat.start <= flat.start && flat.end <= fragment.flat.end
                };
                let owners = self
                    .partitions
                    .iter()
                    .enumerate()
                    .flat_map(|(rank, partition)| {
                        let held = partition.iter().flatten().filter(holds).count();
                        std::iter::repeat_n(rank, held)
                    })
                    .collect();
                spans.push(Span { param, flat, owners });
            }
        }
        spans
    }
}

/// The parameters' parts in a buffer that is laid out like this. Padding, and what lies in no
/// parameter of the plan, is left out.
pub fn fragments(segments: &[Segment], plan: &Plan) -> Vec<Fragment> {
    let mut fragments = Vec::new();
    let mut start = 0;
    for segment in segments {
        let place = segment.param.and_then(|param| Some((param, plan.params().get(param)?)));
        if let Some((param, place)) = place
            && segment.offset + segment.len <= place.numel()
        {
            let first = place.offset + segment.offset;
            fragments.push(Fragment { param, flat: first..first + segment.len, start });
        }
        start += segment.len;
    }
    fragments
}
