//! The placement of the model on the ranks: the fragments of parameters in each rank's partition, as the ranks
//! described them.
//!
//! Engines partition differently: one flat order cut into equal parts, each parameter by itself, or not at all. Code
//! that uses a placement does not assume any of these.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use zprobe_model::spec::Plan;
use zprobe_model::spec::plan::{Param, Segment};
use zprobe_model::trace::LayoutName;

use crate::observed::Observed;

/// A run of consecutive elements of one parameter inside a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The index of the parameter.
    pub param: usize,
    /// The elements of the fragment, as indices of the flat order.
    pub flat: Range<usize>,
    /// The index of the fragment's first element in the buffer.
    pub start: usize,
}

/// Consecutive elements of one parameter that are all held by the same ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedSpan {
    /// The index of the parameter.
    pub param: usize,
    /// The elements of the span, as indices of the flat order.
    pub flat: Range<usize>,
    /// The ranks that hold the span, ascending; a rank that holds it twice is listed twice.
    pub owners: Vec<usize>,
}

/// The placement of the model on the ranks.
pub struct ModelPlacement {
    /// The fragments of each rank; `None` for a rank that never described its partition.
    partitions: Vec<Option<Vec<Fragment>>>,
    /// The sampled elements of buffers that were not recorded in full, by rank and layout.
    samples: BTreeMap<(usize, LayoutName), LayoutSamples>,
    /// The indices of the flat order at which a fragment of some rank begins or ends.
    cuts: BTreeSet<usize>,
}

impl ModelPlacement {
    /// Reads the layouts of the partitions.
    pub fn new(observed: &Observed<'_>, plan: &Plan) -> Self {
        let partitions: Vec<Option<Vec<Fragment>>> = (0..observed.spec.world_size)
            .map(|rank| {
                let segments = observed.model.layouts.get(&(rank, LayoutName::Partition))?;
                Some(fragments(segments, plan))
            })
            .collect();
        let cuts = partitions
            .iter()
            .flatten()
            .flatten()
            .flat_map(|fragment| [fragment.flat.start, fragment.flat.end])
            .collect();
        // Samples need not include the ends of pieces in the first step of a script, where the ends hold addresses,
        // nor in real gradients, which are sampled anywhere.
        let has_ends = observed
            .spec
            .script()
            .is_none_or(|script| script.reserved.is_none() && script.observe.is_none());
        let samples = observed.model.samples.iter().map(|(&place, segments)| {
            let whole = observed.model.layouts.get(&place).copied().unwrap_or_default();
            let (samples, whole) = (fragments(segments, plan), fragments(whole, plan));
            (place, LayoutSamples::new(&samples, &whole, plan, has_ends))
        });
        Self { partitions, cuts, samples: samples.collect() }
    }

    /// The recorded share of a rank's buffers of a layout; 1 if they were recorded in full.
    pub fn recorded_share(&self, rank: usize, layout: LayoutName) -> f64 {
        self.samples.get(&(rank, layout)).map_or(1.0, |samples| samples.share)
    }

    /// Returns the smallest share of elements that a rank recorded: of its optimizer's elements, or of its model
    /// where samples are only known of whole parameters. `None` if all ranks recorded all elements.
    pub fn smallest_share(&self) -> Option<f64> {
        let smallest = |layout: LayoutName| {
            let of_layout = self.samples.iter().filter(move |((_, name), _)| *name == layout);
            of_layout.map(|(_, samples)| samples.share).min_by(f64::total_cmp)
        };
        smallest(LayoutName::Partition).or_else(|| smallest(LayoutName::Full))
    }

    /// Returns the fragments that a rank's optimizer holds; `None` if the rank never described them.
    pub fn partition(&self, rank: usize) -> Option<&[Fragment]> {
        self.partitions.get(rank)?.as_deref()
    }

    /// The number of trainable elements that a rank had to record of its optimizer's elements. `None` if the rank
    /// never described them, or if its samples lack the first or last element of a piece.
    pub fn wanted(&self, rank: usize) -> Option<usize> {
        let held = self.partition(rank)?;
        match self.samples.get(&(rank, LayoutName::Partition)) {
            None => Some(held.iter().map(|fragment| fragment.flat.len()).sum()),
            Some(samples) => samples.wanted,
        }
    }

    /// The number of trainable elements that a rank had to record of its model; `None` if its samples lack the first
    /// or last element of a piece.
    pub fn wanted_of_model(&self, rank: usize, plan: &Plan) -> Option<usize> {
        match self.samples.get(&(rank, LayoutName::Full)) {
            None => Some(trainable(plan).filter(|it| it.is_on(rank)).map(Param::numel).sum()),
            Some(samples) => samples.wanted,
        }
    }

    /// True if every rank described its partition.
    pub fn is_complete(&self) -> bool {
        self.partitions.iter().all(Option::is_some)
    }

    /// True if the step has a gradient for any element of a rank's optimizer, or if the rank never described its
    /// partition.
    pub fn is_due(&self, plan: &Plan, step: usize, rank: usize, ga: usize) -> bool {
        let ranks = 0..self.partitions.len();
        let used = |param: usize| {
            let usage = plan.usage(param);
            ranks.clone().any(|rank| (0..ga).any(|m| plan.uses(usage, step, rank, m)))
        };
        self.partition(rank).is_none_or(|held| held.iter().any(|fragment| used(fragment.param)))
    }

    /// Returns the first rank whose optimizer holds the same elements as this rank's; `None` if this rank never
    /// described its partition.
    pub fn first_replica(&self, rank: usize) -> Option<usize> {
        let held = self.partitions.get(rank)?.as_ref()?;
        self.partitions.iter().position(|other| other.as_ref() == Some(held))
    }

    /// Cuts a fragment wherever the partition of some rank begins or ends.
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

    /// Returns all trainable parameters, cut so that each span has the same owners throughout.
    pub fn spans(&self, plan: &Plan) -> Vec<OwnedSpan> {
        // Fragments of all ranks, sorted by start, so that each part is compared only with fragments that can hold
        // it.
        let mut held: Vec<(&Fragment, usize)> = Vec::new();
        for (rank, partition) in self.partitions.iter().enumerate() {
            held.extend(partition.iter().flatten().map(|fragment| (fragment, rank)));
        }
        held.sort_by_key(|(fragment, _)| fragment.flat.start);
        let (mut next, mut open): (usize, Vec<(&Fragment, usize)>) = (0, Vec::new());
        let mut spans = Vec::new();
        for (param, place) in plan.params().iter().enumerate().filter(|(_, p)| p.trainable) {
            for Fragment { flat, .. } in self.cut(Fragment { param, flat: place.range(), start: 0 })
            {
                open.retain(|(fragment, _)| fragment.flat.end > flat.start);
                while let Some(&(fragment, rank)) = held.get(next)
                    && fragment.flat.start <= flat.start
                {
                    open.push((fragment, rank));
                    next += 1;
                }
                // No part reaches over the end of a fragment, because parts are cut there.
                let holds = |(fragment, _): &&(&Fragment, usize)| flat.end <= fragment.flat.end;
                let mut owners: Vec<usize> =
                    open.iter().filter(holds).map(|(_, rank)| *rank).collect();
                owners.sort_unstable();
                spans.push(OwnedSpan { param, flat, owners });
            }
        }
        spans
    }
}

/// The sampled elements of the buffers of one layout.
struct LayoutSamples {
    /// The share of the elements that are sampled.
    share: f64,
    /// The number of sampled trainable elements; `None` if the first or last element of a piece is not sampled.
    wanted: Option<usize>,
}

impl LayoutSamples {
    /// Creates the samples of a layout. With `with_ends`, samples must include the first and last element of every
    /// piece.
    fn new(samples: &[Fragment], whole: &[Fragment], plan: &Plan, with_ends: bool) -> Self {
        let count = |fragments: &[Fragment]| -> usize {
            fragments.iter().map(|fragment| fragment.flat.len()).sum()
        };
        let trainable = |fragment: &&Fragment| plan.params()[fragment.param].trainable;
        let is_sampled = |element: usize| samples.iter().any(|s| s.flat.contains(&element));
        let has_ends = |piece: &Fragment| {
            piece.flat.is_empty() || is_sampled(piece.flat.start) && is_sampled(piece.flat.end - 1)
        };
        let wanted: usize = samples.iter().filter(trainable).map(|sample| sample.flat.len()).sum();
        Self {
            share: count(samples) as f64 / count(whole).max(1) as f64,
            wanted: (!with_ends || whole.iter().filter(trainable).all(has_ends)).then_some(wanted),
        }
    }
}

fn trainable(plan: &Plan) -> impl Iterator<Item = &Param> {
    plan.params().iter().filter(|param| param.trainable)
}

/// Returns the fragments of parameters in a buffer with this layout. Padding and segments outside of the plan's
/// parameters are left out.
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
