//! Exact weights from coded gradients.
//!
//! A buffer is cut where faults cut: at parameters, and wherever some rank's partition is cut.
//! Every piece that is at least half a code long is decoded by itself, window by window, the last
//! window overlapping the one before. A shorter piece is compared, element by element, with what
//! each set of weights found in the same buffer (and the plan's own) predicts for it, and at last
//! with what each slip that has a name would have made of the plan's.

use std::collections::BTreeMap;

use crate::spec::code::Code;
use crate::spec::{Plan, RunSpec, Usage};
use crate::trace::{LayoutName, Point};

use super::super::infinity;
use super::super::norm::{Clip, gamma};
use super::super::observed::Buffer;
use super::super::placement::Fragment;
use super::groups::Groups;
use super::hypotheses::hypotheses;
use super::rounding::rounding_bound;
use super::{Decoded, Reading, Scene, contribution, expected, is_readable, largest, snap};

pub(super) fn decode(scene: &Scene<'_>) -> Decoded {
    let observed = scene.observed;
    let decoder = Decoder::new(scene);
    let mut contributions = Vec::new();
    let mut refusals = Vec::new();
    let mut before: BTreeMap<(usize, Point), Vec<f64>> = BTreeMap::new();
    let mut read = BTreeMap::new();
    let mut worst = decoder.tolerance;
    for buffer in &observed.buffers {
        let mut values = match buffer.payload.values() {
            Ok(values) => values,
            Err(err) => {
                refusals.push(format!("rank {}, {}: {err}", buffer.rank, buffer.point));
                continue;
            }
        };
        if matches!(buffer.point, Point::MasterWeights | Point::Parameters) {
            let earlier = before.insert((buffer.rank, buffer.point), values.clone());
            let (Some(earlier), Some(lr)) = (earlier, observed.spec.optimizer.readable_lr()) else {
                continue;
            };
            for (after, before) in values.iter_mut().zip(earlier) {
                *after = (before - *after) / lr;
            }
            if let Some(refusal) = decoder.inexact_update(buffer) {
                refusals.push(refusal);
                continue;
            }
        }
        if !is_readable(observed.spec, buffer) {
            continue;
        }
        let planned = infinity::planned(observed, scene.plan, buffer);
        let (pieces, infinite) =
            infinity::without_planned(decoder.pieces(buffer), &values, planned);
        let mut in_pieces =
            pieces.iter().flat_map(|piece| &values[piece.start..][..piece.flat.len()]);
        if in_pieces.any(|value| !value.is_finite()) {
            refusals.push(format!("rank {}, {}: not finite", buffer.rank, buffer.point));
            continue;
        }
        let tolerance = decoder.undo_clipping(buffer, &mut values);
        if tolerance > MOST_TOLERANCE {
            refusals.push(format!(
                "rank {}, {}: clipping rounds away up to {tolerance:.1e} of a contribution; use \
                 fewer of them, or no --gradient-clipping",
                buffer.rank, buffer.point
            ));
            continue;
        }
        if let (true, Some(step)) = (buffer.point == scene.last_word(), buffer.step) {
            let elements: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
            *read.entry((step, buffer.rank)).or_insert(0) += elements + infinite;
            worst = worst.max(tolerance);
        }
        for reading in decoder.read(buffer, &pieces, &values, tolerance) {
            contributions.push(contribution(scene, buffer, reading));
        }
    }
    Decoded {
        contributions,
        smallest_weight_deviation: (!read.is_empty()).then_some(worst),
        condition: Some(1.0),
        smallest_element_deviation: Some(worst),
        refusals,
        complete: true,
        read,
    }
}

/// Beyond this nothing can be told from its neighbour.
const MOST_TOLERANCE: f64 = 0.5;

struct Decoder<'a> {
    scene: &'a Scene<'a>,
    spec: &'a RunSpec,
    plan: &'a Plan,
    code: Code,
    /// Bound on the rounding error of an element, in units of one contribution.
    tolerance: f64,
}

impl<'a> Decoder<'a> {
    fn new(scene: &'a Scene<'a>) -> Self {
        let spec = scene.observed.spec;
        let (plan, code) = (scene.plan, Plan::code(spec));
        Self { scene, spec, plan, code, tolerance: rounding_bound(spec) }
    }

    /// Parameters in a narrow dtype hold the sum of all updates so far, and may outgrow it.
    fn inexact_update(&self, buffer: &Buffer<'_>) -> Option<String> {
        let dtype = buffer.payload.dtype;
        let largest = self.spec.contributions() + Code::MOST_INITIAL;
        (largest > dtype.exact_integers()).then(|| {
            format!(
                "the {} after each step: {largest} contributions are not exact in {dtype} \
                 (at most {})",
                buffer.point,
                dtype.exact_integers(),
            )
        })
    }

    /// Divides by what clipping had to multiply with; returns the bound on an element's rounding.
    ///
    /// The engine computes the factor with three operations in the gradient's dtype, and multiplies:
    /// `γ(4)` of elements of at most `W·GA`. Where the update is read back, weights that are no
    /// integers any more were rounded twice.
    fn undo_clipping(&self, buffer: &Buffer<'_>, values: &mut [f64]) -> f64 {
        let factor = match self.scene.clip(buffer) {
            Clip::By(factor) => factor,
            Clip::No | Clip::Unbounded => 1.0,
        };
        for value in values {
            *value /= factor;
        }
        let dtype = buffer.payload.dtype;
        let mut tolerance = self.tolerance;
        if factor < 1.0 {
            tolerance += gamma(4, dtype) * self.spec.contributions_per_step() as f64;
        }
        let was_clipped = |step| {
            let clip = Clip::of(self.scene.observed, self.scene.norms, step, buffer.rank);
            matches!(clip, Clip::By(_))
        };
        let is_update = matches!(buffer.point, Point::MasterWeights | Point::Parameters);
        if is_update && (0..=buffer.step.unwrap_or(0)).any(was_clipped) {
            let weight = (Code::MOST_INITIAL + self.spec.contributions()) as f64;
            tolerance += 2.0 * dtype.unit_roundoff() * weight / factor;
        }
        tolerance
    }

    /// Reads a buffer: ordinary parameters together, each special one by itself.
    fn read(
        &self,
        buffer: &Buffer<'_>,
        pieces: &[Fragment],
        values: &[f64],
        tolerance: f64,
    ) -> Vec<Reading> {
        let step = buffer.step.unwrap_or(0);
        let mut kinds: BTreeMap<Option<usize>, Groups> = BTreeMap::new();
        for piece in pieces {
            let kind = self.kind(piece);
            kinds.entry(kind).or_insert_with(|| {
                let usage = self.plan.usage(piece.param);
                let planned = expected(self.scene, buffer, step, usage);
                Groups::new(usage, kind.is_some(), planned, tolerance)
            });
        }
        let (long, short): (Vec<_>, Vec<_>) =
            pieces.iter().partition(|piece| piece.flat.len() >= self.code.shortest());
        let mut decoded = 0;
        for piece in long {
            decoded += piece.flat.len();
            for (weights, residual) in self.windows(piece, values, tolerance) {
                if let Some(groups) = kinds.get_mut(&self.kind(piece)) {
                    groups.add(weights, residual, piece.param);
                }
            }
        }
        for piece in short {
            let best = self.best(&kinds, buffer, piece, values, tolerance);
            if let (Some((residual, weights)), Some(groups)) =
                (best, kinds.get_mut(&self.kind(piece)))
            {
                groups.add(weights, residual, piece.param);
            }
        }
        let total: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
        let covered = if total == 0 { 0.0 } else { decoded as f64 / total as f64 };
        let covered = covered * self.scene.placement.recorded_share(buffer.rank, buffer.layout);
        let name = |param| self.scene.observed.param_name(param);
        kinds.into_values().flat_map(|groups| groups.into_readings(covered, name)).collect()
    }

    /// The parameter of a piece, if it is a special one.
    fn kind(&self, piece: &Fragment) -> Option<usize> {
        (self.plan.usage(piece.param) != Usage::ordinary(self.spec)).then_some(piece.param)
    }

    /// The weights that deviate least from a piece too short to decode, and by how much: those
    /// found elsewhere in the buffer, the plan's, those of a gradient that is left over; or those of
    /// the only slip that fits.
    fn best(
        &self,
        kinds: &BTreeMap<Option<usize>, Groups>,
        buffer: &Buffer<'_>,
        piece: &Fragment,
        values: &[f64],
        tolerance: f64,
    ) -> Option<(f64, Vec<f64>)> {
        let own = kinds.get(&self.kind(piece))?;
        // Where a piece agrees with several, it is like all that could be decoded, if that is all the
        // same; and else nothing is wrong with it, so the plan's come next.
        let mut found = own.found();
        let mut candidates: Vec<Vec<f64>> = match (found.next(), found.next()) {
            (Some(only), None) => vec![only.to_vec()],
            _ => Vec::new(),
        };
        candidates.push(own.planned().to_vec());
        // Beside data that no gradient explains, a few elements that agree with something by chance say
        // nothing.
        let is_foreign = kinds.values().any(Groups::has_unexplained);
        candidates.extend(own.found().map(<[f64]>::to_vec));
        let elsewhere = kinds.values().flat_map(Groups::found);
        candidates.extend(elsewhere.map(|weights| self.as_used(weights, own.usage())));
        if !is_foreign {
            candidates.push(vec![0.0; own.planned().len()]);
        }
        if let (Some(step), false) = (buffer.step.and_then(|step| step.checked_sub(1)), is_foreign)
        {
            let left = expected(self.scene, buffer, step, own.usage());
            candidates.push(left.iter().zip(own.planned()).map(|(left, new)| left + new).collect());
            candidates.push(left);
        }
        let piece_values = &values[piece.start..][..piece.flat.len()];
        let deviation = |weights: &[f64]| {
            let predicted = self.code.encode(weights, piece.flat.clone());
            largest(piece_values.iter().zip(predicted).map(|(value, p)| (value - p).abs()))
        };
        let best = candidates
            .into_iter()
            .map(|weights| (deviation(&weights), weights))
            .min_by(|a, b| a.0.total_cmp(&b.0))?;
        if best.0 <= tolerance || is_foreign {
            return Some(best);
        }
        // A few elements may agree with several slips, and then say nothing.
        let mut slips = hypotheses(self.spec, own.planned(), buffer.rank)
            .into_iter()
            .map(|weights| (deviation(&weights), weights))
            .filter(|(deviation, _)| *deviation <= tolerance);
        match (slips.next(), slips.next()) {
            (Some(only), None) => Some(only),
            _ => Some(best),
        }
    }

    /// Weights without the gradients that a parameter, used like `usage`, does not have.
    fn as_used(&self, weights: &[f64], usage: Usage) -> Vec<f64> {
        let ga = self.spec.gradient_accumulation_steps;
        let per_step = self.spec.contributions_per_step();
        weights
            .iter()
            .enumerate()
            .map(|(k, &weight)| if usage.uses(k / per_step, k % ga, ga) { weight } else { 0.0 })
            .collect()
    }

    /// Cuts a buffer at parameters and, where it holds them whole, at partitions.
    fn pieces(&self, buffer: &Buffer<'_>) -> Vec<Fragment> {
        let pieces = infinity::parts(self.scene.observed, self.plan, buffer);
        match buffer.layout {
            LayoutName::Partition => pieces,
            LayoutName::Full => {
                pieces.into_iter().flat_map(|piece| self.scene.placement.cut(piece)).collect()
            }
        }
    }

    /// Decodes a piece window by window: weights, and the largest coefficient of a spare row.
    fn windows<'p>(
        &'p self,
        piece: &'p Fragment,
        values: &'p [f64],
        tolerance: f64,
    ) -> impl Iterator<Item = (Vec<f64>, f64)> + 'p {
        let whole = piece.flat.len() >= self.code.length();
        let length = if whole { self.code.length() } else { self.code.shortest() };
        let last = piece.flat.len() - length;
        (0..last).step_by(length).chain([last]).map(move |offset| {
            let window = &values[piece.start + offset..][..length];
            let mut weights = self.code.decode(window, piece.flat.start + offset);
            let spare = weights.split_off(self.spec.contributions());
            let residual = largest(spare.iter().map(|coefficient| coefficient.abs()));
            (weights.iter().map(|w| snap(*w, tolerance)).collect(), residual)
        })
    }
}
