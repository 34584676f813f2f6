//! Pieces that are too short to be decoded, which are compared with known weights.
//!
//! Known weights are those found in the same buffer, the plan's own, the weights that the partitions of all ranks hold
//! together, and the plan's weights changed by each known mistake. A few elements may agree with several of them. Then
//! it is only certain that the plan's weights are wrong, and all weights that agree are kept.

use std::collections::BTreeMap;
use std::rc::Rc;

use zprobe_model::spec::Usage;
use zprobe_model::trace::{LayoutName, Point};

use super::coded::{Decoder, Prepared};
use super::groups::PieceGroups;
use super::hypotheses::{Owner, WeightSlip};
use super::largest;
use super::together::Together;
use super::weights::{ColumnWeights, KnownWeights};
use crate::bounds::DETERMINED_BITS;
use crate::placement::Fragment;

/// The largest number of possible weights that are kept.
const MOST_POSSIBLE: usize = 16;

/// The kind of a set of elements that are explained together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ElementSet {
    /// A piece as a whole.
    Whole,
    /// Elements that differ from their surroundings.
    Odd,
}

/// The weights that explain some elements best.
pub(super) struct BestWeights {
    /// The weights themselves.
    pub weights: Rc<ColumnWeights>,
    /// All candidate weights, if there are too few elements to decide between them; empty if the weights are certain.
    pub possible: Vec<Rc<ColumnWeights>>,
    /// The known mistake that leads from the planned weights to these; `None` if no mistake was assumed.
    pub slip: Option<WeightSlip>,
    /// The largest part of an element that the weights do not explain.
    pub residual: f64,
}

impl BestWeights {
    /// Creates weights that leave `residual` of an element unexplained.
    pub fn new(weights: Rc<ColumnWeights>, residual: f64) -> Self {
        Self { weights, possible: Vec::new(), slip: None, residual }
    }

    /// Creates weights that explain all elements exactly.
    pub fn exact(weights: Rc<ColumnWeights>) -> Self {
        Self::new(weights, 0.0)
    }
}

impl Decoder<'_> {
    /// Returns the weights that explain elements of one kind of parameter. Weights from elsewhere in the buffer, or of
    /// the plan, are certain. Weights of a known mistake are certain only if no other mistake fits and there are
    /// enough elements to tell. If no weights fit, those with the smallest deviation are returned.
    pub fn explain(
        &self,
        kinds: &BTreeMap<Option<usize>, PieceGroups>,
        ready: &Prepared<'_>,
        held: ElementSet,
        pieces: &[Fragment],
        together: &Together<'_>,
    ) -> Option<BestWeights> {
        let Prepared { buffer, values, tolerance, .. } = ready;
        let own = kinds.get(&self.kind(pieces.first()?))?;
        let fits = |weights: &&Rc<ColumnWeights>| {
            pieces.iter().all(|piece| weights.fit(&self.code, piece, values, *tolerance))
        };
        let read = |weights: &Rc<ColumnWeights>| {
            let residual = self.deviation(weights, pieces, values);
            BestWeights::new(Rc::clone(weights), residual)
        };
        // If all decoded pieces hold the same weights, these are tried first. Otherwise no fault is assumed, and the
        // plan's weights are tried first.
        let mut found = own.found();
        let mut likely: Vec<Rc<ColumnWeights>> = match (found.next(), found.next()) {
            (Some(only), None) => vec![Rc::clone(only)],
            _ => Vec::new(),
        };
        likely.push(Rc::clone(own.planned()));
        if held == ElementSet::Whole
            && let Some(weights) = likely.iter().find(fits)
        {
            return Some(read(weights));
        }
        // Next to foreign data, a few elements may agree with some weights by chance, which proves nothing.
        let is_foreign = kinds.values().any(PieceGroups::has_unexplained);
        let usage = own.usage();
        let mut seen: Vec<Rc<ColumnWeights>> = own.found().cloned().collect();
        for groups in kinds.values().filter(|groups| groups.usage() != usage) {
            seen.extend(groups.found().map(|weights| self.as_used(weights, usage)));
        }
        if !is_foreign {
            let whole = match buffer.layout {
                LayoutName::Partition => together.candidates(),
                LayoutName::Full if buffer.point == Point::Parameters => together.earlier,
                LayoutName::Full => &[],
            };
            seen.extend(whole.iter().map(|weights| self.as_used(weights, usage)));
        }
        let mut fitting: Vec<BestWeights> = Vec::new();
        let add = |fitting: &mut Vec<BestWeights>, new: BestWeights| {
            let is_new = |known: &BestWeights| known.weights.columns != new.weights.columns;
            if fitting.iter().all(is_new) {
                fitting.push(new);
            }
            fitting.len() < MOST_POSSIBLE
        };
        for weights in seen.iter().filter(fits) {
            add(&mut fitting, read(weights));
        }
        // A piece with the weights of another piece in the same buffer has the same slip. Without the gradients that the
        // piece does not have, weights may be all 0, and a few elements may be 0 by chance.
        let is_some = |it: &BestWeights| it.weights.columns.iter().any(|weight| *weight != 0.0);
        let mut certain =
            held == ElementSet::Whole && fitting.len() == 1 && fitting.iter().all(is_some);
        if !certain && !is_foreign {
            let known = [KnownWeights::Nothing, KnownWeights::Added, KnownWeights::Left];
            let known = known.map(|known| self.expectations.of(known, buffer, usage));
            for weights in known.iter().flatten().filter(fits) {
                add(&mut fitting, read(weights));
            }
            let mut slips = self.fitting_slips(own.planned(), ready, held, pieces);
            while slips.next().is_some_and(|found| add(&mut fitting, found)) {}
            let elements: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
            let tried = (seen.len() + known.len() + self.slips.len()) as f64;
            certain = fitting.len() == 1 && elements as f64 >= tried.log2() + DETERMINED_BITS;
        }
        let possible = fitting.iter().map(|it| Rc::clone(&it.weights)).collect();
        if let Some(first) = fitting.into_iter().next() {
            let possible = if certain { Vec::new() } else { possible };
            return Some(BestWeights { possible, ..first });
        }
        likely.extend(seen);
        let best = likely
            .iter()
            .map(|weights| (self.deviation(weights, pieces, values), weights))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(BestWeights::new(Rc::clone(best.1), best.0))
    }

    /// Returns the weights of all known mistakes that explain the elements. For elements that differ from their
    /// surroundings, mistakes about a single gradient are not considered.
    fn fitting_slips(
        &self,
        planned: &Rc<ColumnWeights>,
        ready: &Prepared<'_>,
        held: ElementSet,
        pieces: &[Fragment],
    ) -> impl Iterator<Item = BestWeights> {
        let owner = ready.buffer.step.map(|step| Owner { step, rank: ready.buffer.rank });
        let columns = &planned.columns;
        let fits = move |(slip, owner): &(&WeightSlip, Owner)| {
            let explains = |piece: &Fragment| {
                let values = &ready.values[..];
                let (spec, tolerance) = (self.spec, ready.tolerance);
                slip.fits(spec, &self.code, planned, *owner, (piece, values), tolerance)
            };
            (held == ElementSet::Whole || matches!(slip, WeightSlip::Microbatches { .. }))
                && pieces.iter().all(explains)
                && slip.changes(self.spec, columns, owner.rank)
        };
        let slips = self.slips.iter().filter_map(move |slip| Some((slip, owner?))).filter(fits);
        slips.map(move |(slip, owner)| {
            let weights = ColumnWeights::new(slip.weights(self.spec, columns, owner.rank));
            let residual = self.deviation(&weights, pieces, &ready.values);
            BestWeights { slip: Some(slip.clone()), ..BestWeights::new(weights, residual) }
        })
    }

    /// Returns the largest difference between an element of `pieces` and the weighted sum of gradients for this
    /// element.
    pub fn deviation(&self, weights: &ColumnWeights, pieces: &[Fragment], values: &[f64]) -> f64 {
        let sum = weights.sum(&self.code);
        let elements =
            pieces.iter().flat_map(|piece| piece.flat.clone().zip(&values[piece.start..]));
        largest(elements.map(|(element, value)| (value - sum.value(element)).abs()))
    }

    /// Returns the weights with 0 in place of those of gradients that a parameter with this `usage` does not have.
    fn as_used(&self, weights: &Rc<ColumnWeights>, usage: Usage) -> Rc<ColumnWeights> {
        if usage.uses_all() {
            return Rc::clone(weights);
        }
        let ga = self.spec.gradient_accumulation_steps;
        let per_step = self.spec.contributions_per_step();
        let steps = self.spec.code_steps();
        let used = |k: usize| {
            let (step, rank) = (k / per_step, k % per_step / ga);
            let mut recorded = self.spec.recorded_steps().filter(|it| it % steps == step);
            recorded.any(|step| self.plan.uses(usage, step, rank, k % ga))
        };
        let has_more = |(k, weight): (usize, &f64)| *weight != 0.0 && !used(k);
        if !weights.columns.iter().enumerate().any(has_more) {
            return Rc::clone(weights);
        }
        let columns = weights.columns.iter().enumerate();
        ColumnWeights::new(columns.map(|(k, &weight)| if used(k) { weight } else { 0.0 }).collect())
    }
}
