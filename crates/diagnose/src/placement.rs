//! Placement of the model on the ranks: the fragments of parameters in each rank's partition, as
//! the ranks described them.
//!
//! Engines partition differently: one flat order into equal parts, each parameter by itself, or not
//! at all. No code behind this point assumes how.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use zprobe_model::spec::Plan;
use zprobe_model::spec::plan::{Param, Segment};
use zprobe_model::trace::LayoutName;

use super::observed::Observed;

/// A run of consecutive elements of one parameter inside a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Index of the parameter.
    pub param: usize,
    /// Its elements, in the flat order.
    pub flat: Range<usize>,
    /// Start of the fragment in the buffer.
    pub start: usize,
}

/// Consecutive elements of one parameter that the same ranks hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the parameter.
    pub param: usize,
    /// Its elements, in the flat order.
    pub flat: Range<usize>,
    /// Ranks that hold them; a rank that holds them twice is listed twice.
    pub owners: Vec<usize>,
}

/// Placement of the model on the ranks.
pub struct Placement {
    /// Fragments by rank; none for a rank that never described its partition.
    partitions: Vec<Option<Vec<Fragment>>>,
    /// Samples that were recorded of buffers, by rank and layout, where buffers were not recorded
    /// whole.
    samples: BTreeMap<(usize, LayoutName), Samples>,
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
        // In the first step of a script, addresses lie at the ends of pieces; real gradients are sampled
        // anywhere.
        let has_ends = observed
            .spec
            .script()
            .is_none_or(|script| script.reserved.is_none() && script.observe.is_none());
        let samples = observed.samples.iter().map(|(&place, segments)| {
            let whole = observed.layouts.get(&place).copied().unwrap_or_default();
            let (samples, whole) = (fragments(segments, plan), fragments(whole, plan));
            (place, Samples::new(&samples, &whole, plan, has_ends))
        });
        Self { partitions, cuts, samples: samples.collect() }
    }

    /// Share of a rank's buffers of a layout that was recorded: 1 for all.
    pub fn recorded_share(&self, rank: usize, layout: LayoutName) -> f64 {
        self.samples.get(&(rank, layout)).map_or(1.0, |samples| samples.share)
    }

    /// The smallest share of elements that a rank recorded: of what its optimizer holds, or, where samples are only known of
    /// whole parameters, of its model. None if all ranks recorded all elements.
    pub fn smallest_share(&self) -> Option<f64> {
        let smallest = |layout: LayoutName| {
            let of_layout = self.samples.iter().filter(move |((_, name), _)| *name == layout);
            of_layout.map(|(_, samples)| samples.share).min_by(f64::total_cmp)
        };
        smallest(LayoutName::Partition).or_else(|| smallest(LayoutName::Full))
    }

    /// Fragments that a rank's optimizer holds; none if the rank never described them.
    pub fn partition(&self, rank: usize) -> Option<&[Fragment]> {
        self.partitions.get(rank)?.as_deref()
    }

    /// Number of trainable elements that a rank was to record of what its optimizer holds; none if
    /// the rank never described that, or if its samples lack the first or last element of a piece.
    pub fn wanted(&self, rank: usize) -> Option<usize> {
        let held = self.partition(rank)?;
        match self.samples.get(&(rank, LayoutName::Partition)) {
            None => Some(held.iter().map(|fragment| fragment.flat.len()).sum()),
            Some(samples) => samples.wanted,
        }
    }

    /// Number of trainable elements that a rank was to record of the model that it has; none if its
    /// samples lack the first or last element of a piece.
    pub fn wanted_of_model(&self, rank: usize, plan: &Plan) -> Option<usize> {
        match self.samples.get(&(rank, LayoutName::Full)) {
            None => Some(trainable(plan).filter(|it| it.is_on(rank)).map(Param::numel).sum()),
            Some(samples) => samples.wanted,
        }
    }

    /// True if every rank described what it holds.
    pub fn is_complete(&self) -> bool {
        self.partitions.iter().all(Option::is_some)
    }

    /// True if a step has a gradient for anything that a rank's optimizer holds. A rank that never
    /// described what it holds is assumed to be due one.
    pub fn is_due(&self, plan: &Plan, step: usize, rank: usize, ga: usize) -> bool {
        let ranks = 0..self.partitions.len();
        let used = |param: usize| {
            let usage = plan.usage(param);
            ranks.clone().any(|rank| (0..ga).any(|m| plan.uses(usage, step, rank, m)))
        };
        self.partition(rank).is_none_or(|held| held.iter().any(|fragment| used(fragment.param)))
    }

    /// The first rank whose optimizer holds the same as this rank's; none if this rank never described
    /// what it holds.
    pub fn first_replica(&self, rank: usize) -> Option<usize> {
        let held = self.partitions.get(rank)?.as_ref()?;
        self.partitions.iter().position(|other| other.as_ref() == Some(held))
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
        // Fragments of all ranks by where they start: each part asks only those that can hold it.
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
                // No part reaches over the end of a fragment: that is where parts are cut.
                let holds = |(fragment, _): &&(&Fragment, usize)| flat.end <= fragment.flat.end;
                let mut owners: Vec<usize> =
                    open.iter().filter(holds).map(|(_, rank)| *rank).collect();
                owners.sort_unstable();
                spans.push(Span { param, flat, owners });
            }
        }
        spans
    }
}

/// The samples that are recorded of buffers of one layout.
struct Samples {
    /// Share of the elements that are sampled.
    share: f64,
    /// Number of trainable elements among them; none if the first or last one of a piece is not
    /// sampled.
    wanted: Option<usize>,
}

impl Samples {
    /// Samples of a layout; `with_ends` if they must have the first and last element of every piece.
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
