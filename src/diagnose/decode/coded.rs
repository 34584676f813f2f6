//! Exact weights from coded gradients.
//!
//! A buffer is cut where faults cut: at parameters and at partitions. Every piece that is at least
//! one code long is decoded by itself, window by window, the last window overlapping the one
//! before. A shorter piece is compared, element by element, with what each set of weights found in
//! the same buffer (and the plan's own) predicts for it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::spec::code::Code;
use crate::spec::plan::Param;
use crate::spec::{Dtype, Plan, RunSpec};
use crate::trace::{LayoutName, Point};

use super::super::observed::{Buffer, Observed};
use super::{Decoded, NOISE_SHARE, Reading, contribution, is_readable, largest, snap};

/// A piece of a buffer: a range of the flat order within one parameter and one partition.
struct Piece {
    param: usize,
    flat: Range<usize>,
    /// Where the piece starts in the buffer.
    start: usize,
}

pub(super) fn decode(observed: &Observed<'_>, plan: &Plan) -> Decoded {
    let decoder = Decoder::new(observed.spec, plan);
    let mut contributions = Vec::new();
    let mut refusals = Vec::new();
    let mut before: BTreeMap<(usize, Point), Vec<f64>> = BTreeMap::new();
    let mut read = BTreeMap::new();
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
        if values.iter().any(|value| !value.is_finite()) {
            refusals.push(format!("rank {}, {}: not finite", buffer.rank, buffer.point));
            continue;
        }
        let pieces = decoder.pieces(observed, buffer);
        if let (Point::OptimizerInput, Some(step)) = (buffer.point, buffer.step) {
            let elements: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
            *read.entry((step, buffer.rank)).or_insert(0) += elements;
        }
        for reading in decoder.read(observed, buffer, &pieces, &values) {
            contributions.push(contribution(observed.spec, plan, buffer, reading));
        }
    }
    Decoded {
        contributions,
        smallest_weight_deviation: (!read.is_empty()).then_some(decoder.tolerance),
        condition: Some(1.0),
        smallest_element_deviation: Some(decoder.tolerance),
        refusals,
        input_complete: true,
        read,
    }
}

struct Decoder<'a> {
    spec: &'a RunSpec,
    plan: &'a Plan,
    code: Code,
    /// Bound on the rounding error of an element, in units of one contribution.
    tolerance: f64,
}

impl<'a> Decoder<'a> {
    fn new(spec: &'a RunSpec, plan: &'a Plan) -> Self {
        Self { spec, plan, code: Plan::code(spec), tolerance: rounding_bound(spec) }
    }

    /// Parameters in a narrow dtype hold the sum of all updates so far, and may outgrow it.
    fn inexact_update(&self, buffer: &Buffer<'_>) -> Option<String> {
        let dtype = buffer.payload.dtype;
        let largest = self.spec.contributions() + 2;
        (largest > dtype.exact_integers()).then(|| {
            format!(
                "the {} after each step: {largest} contributions are not exact in {dtype} \
                 (at most {})",
                buffer.point,
                dtype.exact_integers(),
            )
        })
    }

    fn read(
        &self,
        observed: &Observed<'_>,
        buffer: &Buffer<'_>,
        pieces: &[Piece],
        values: &[f64],
    ) -> Vec<Reading> {
        let total: usize = pieces.iter().map(|piece| piece.flat.len()).sum();
        let mut groups = Groups::new(self.planned(buffer), self.tolerance);
        let mut decoded = 0;
        let (long, short): (Vec<_>, Vec<_>) =
            pieces.iter().partition(|piece| piece.flat.len() >= self.code.length());
        for piece in long {
            decoded += piece.flat.len();
            for (weights, residual) in self.windows(piece, values) {
                groups.add(weights, residual, piece.param);
            }
        }
        for piece in short {
            let piece_values = &values[piece.start..][..piece.flat.len()];
            let deviation = |weights: &[f64]| {
                let predicted = self.code.encode(weights, piece.flat.clone());
                largest(piece_values.iter().zip(predicted).map(|(value, p)| (value - p).abs()))
            };
            groups.add_by_deviation(deviation, piece.param);
        }
        let covered = if total == 0 { 0.0 } else { decoded as f64 / total as f64 };
        groups.into_readings(covered, |param| observed.param_name(param))
    }

    fn planned(&self, buffer: &Buffer<'_>) -> Vec<f64> {
        let last = self.spec.gradient_accumulation_steps - 1;
        let step = buffer.step.unwrap_or(0);
        self.plan.expected(buffer.point, step, buffer.microbatch.unwrap_or(last), buffer.rank)
    }

    /// Cuts a buffer at parameters and partitions; padding is left out.
    fn pieces(&self, observed: &Observed<'_>, buffer: &Buffer<'_>) -> Vec<Piece> {
        let Some(segments) = observed.layouts.get(&(buffer.rank, buffer.layout)) else {
            return Vec::new();
        };
        let partition = self.plan.partition(0).len();
        let mut pieces = Vec::new();
        let mut start = 0;
        for segment in *segments {
            let place = segment.param.and_then(|i| Some((i, self.plan.params().get(i)?)));
            let inside = |place: &Param| segment.offset + segment.len <= place.numel();
            if let Some((param, place)) = place.filter(|(_, place)| inside(place)) {
                let mut first = place.offset + segment.offset;
                let end = first + segment.len;
                let mut at = start;
                while first < end {
                    let cut = match buffer.layout {
                        LayoutName::Full => end.min((first / partition + 1) * partition),
                        LayoutName::Partition => end,
                    };
                    pieces.push(Piece { param, flat: first..cut, start: at });
                    at += cut - first;
                    first = cut;
                }
            }
            start += segment.len;
        }
        pieces.retain(|piece| piece.start + piece.flat.len() <= buffer.payload.numel);
        pieces
    }

    /// Decodes a piece window by window: weights, and the largest coefficient of a spare row.
    fn windows<'p>(
        &'p self,
        piece: &'p Piece,
        values: &'p [f64],
    ) -> impl Iterator<Item = (Vec<f64>, f64)> + 'p {
        let (length, columns) = (self.code.length(), self.spec.contributions());
        let last = piece.flat.len() - length;
        (0..last).step_by(length).chain([last]).map(move |offset| {
            let window = &values[piece.start + offset..][..length];
            let mut weights = self.code.decode(window, piece.flat.start + offset);
            let spare = weights.split_off(columns);
            let residual = largest(spare.iter().map(|coefficient| coefficient.abs()));
            (weights.iter().map(|w| snap(*w, self.tolerance)).collect(), residual)
        })
    }
}

/// Pieces of one buffer that have the same weights.
struct Groups {
    tolerance: f64,
    planned: Vec<f64>,
    groups: Vec<Group>,
}

struct Group {
    weights: Vec<f64>,
    residual: f64,
    params: Vec<usize>,
}

impl Groups {
    fn new(planned: Vec<f64>, tolerance: f64) -> Self {
        Self { tolerance, planned, groups: Vec::new() }
    }

    fn add(&mut self, weights: Vec<f64>, residual: f64, param: usize) {
        let slack = self.slack(&weights);
        let explained = residual <= slack;
        let alike = |other: &[f64]| weights.iter().zip(other).all(|(a, b)| (a - b).abs() <= slack);
        // Windows that no weights explain have nothing in common; one entry stands for all.
        let same = self.groups.iter().position(|group| {
            let group_explained = group.residual <= self.slack(&group.weights);
            explained == group_explained && (!explained || alike(&group.weights))
        });
        match same.map(|index| &mut self.groups[index]) {
            Some(group) => {
                group.residual = group.residual.max(residual);
                group.params.push(param);
            }
            None => self.groups.push(Group { weights, residual, params: vec![param] }),
        }
    }

    /// What may pass as noise beside these weights. A wrong scale (1/3, say) is rounded in the
    /// narrowest dtype on the way, which leaves noise far below the deviation itself.
    fn slack(&self, weights: &[f64]) -> f64 {
        let deviation =
            largest(weights.iter().zip(&self.planned).map(|(weight, p)| (weight - p).abs()));
        self.tolerance.max(NOISE_SHARE * deviation)
    }

    /// Adds a piece too short to decode under the weights that deviate least from it.
    fn add_by_deviation(&mut self, deviation: impl Fn(&[f64]) -> f64, param: usize) {
        let candidates = self.groups.iter().map(|group| &group.weights).chain([&self.planned]);
        let best = candidates
            .map(|weights| (deviation(weights), weights))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(residual, weights)| (residual, weights.clone()));
        if let Some((residual, weights)) = best {
            self.add(weights, residual, param);
        }
    }

    fn into_readings(self, covered: f64, name: impl Fn(usize) -> String) -> Vec<Reading> {
        let whole = self.groups.len() == 1;
        self.groups
            .into_iter()
            .map(|mut group| {
                group.params.dedup();
                Reading {
                    weights: group.weights,
                    residual: group.residual,
                    tolerance: self.tolerance,
                    covered,
                    params: (!whole).then(|| group.params.iter().map(|&p| name(p)).collect()),
                }
            })
            .collect()
    }
}

/// How far rounding may move an element, in units of one contribution.
///
/// Codes, their sums and a division by a power of two are exact. A division by another number
/// rounds, to fp32: the loss is divided in fp32, and a narrower gradient rounds back to the
/// integer. In units of `u·W·GA`: 2 for each addend (the quotient and its product with `S`), 1 for
/// each of the `GA` and `W` additions, 1 for the average; and where the update is read back, 1 for
/// each of two weights, which have grown for `steps` steps.
fn rounding_bound(spec: &RunSpec) -> f64 {
    if spec.world_size.is_power_of_two() && spec.gradient_accumulation_steps.is_power_of_two() {
        return 0.0;
    }
    let operations = spec.gradient_accumulation_steps + spec.world_size + 2 * (spec.steps + 1) + 3;
    operations as f64 * Dtype::Fp32.unit_roundoff() * spec.contributions_per_step() as f64
}
