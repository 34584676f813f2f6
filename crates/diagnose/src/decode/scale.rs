//! The factor by which a user's script multiplied all gradients: the average over ranks, a clipping coefficient, or
//! the removal of a loss scale.
//!
//! Codes replace the gradients after the loss, so that the factor cannot be predicted. The factor is read from the
//! buffer itself, as the weight that most gradients have.

use std::collections::BTreeSet;

use zprobe_model::spec::code::Code;
use zprobe_model::spec::{Plan, RunSpec, UNIT};

use super::{Factor, largest};
use crate::bounds::{self, STANDARD_ERRORS};
use crate::placement::Fragment;

/// The share of the largest weight below which a weight is noise.
const NOISE: f64 = 1.0 / 256.0;

/// The factor that all gradients in a buffer have in common, and the rounding bound that it implies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommonScale {
    /// The factor by which the buffer holds each gradient's code; 1/W for an average.
    pub factor: Factor,
    /// The bound on the error of an element after the division by the factor, in contributions.
    pub tolerance: f64,
}

impl CommonScale {
    /// Reads the common factor from the windows of all pieces that are long enough to be decoded, for gradients
    /// averaged over `replicas` ranks. `None` if there is no such piece, or all of them are 0.
    pub fn read(
        spec: &RunSpec,
        replicas: usize,
        plan: &Plan,
        code: &Code,
        step: usize,
        pieces: &[Fragment],
        values: &[f64],
    ) -> Option<Self> {
        let mut weights = Vec::new();
        let ga = spec.gradient_accumulation_steps;
        for piece in pieces.iter().filter(|piece| piece.flat.len() >= code.length()) {
            let window = &values[piece.start..][..code.length()];
            let columns = code.decode(window, piece.flat.start);
            let usage = plan.usage(piece.param);
            let used = |number: &usize| plan.uses(usage, step, number / ga, number % ga);
            let of_step = (0..spec.contributions_per_step()).filter(used);
            let first = spec.columns(step).start;
            let read = of_step.map(|number| (number / ga, columns[first + number] / UNIT));
            let read: Vec<(usize, f64)> = read.collect();
            let is_even = read.iter().all(|(_, it)| is_same(it.abs(), read[0].1.abs()));
            let weight = |(rank, value): (usize, f64)| GradientWeight { rank, value, is_even };
            weights.extend(read.into_iter().map(weight));
        }
        Some(Self::new(spec, common_factor(replicas, &weights)?, values))
    }

    /// Returns the factor of a rank's own gradients before a reduction, which are as autograd delivered them.
    pub fn own(spec: &RunSpec, values: &[f64]) -> Self {
        Self::new(spec, Factor::own(spec), values)
    }

    /// Reads the common factor of elements that are too few to be decoded; `planned` are the sums of codes that the
    /// plan expects. Returns the factor for which all elements have their planned values; if no factor fits, returns
    /// the factor of an average over `replicas` ranks. `None` if there are too few elements even to compare them with
    /// the plan.
    pub fn of_few(
        spec: &RunSpec,
        replicas: usize,
        planned: &[f64],
        values: &[f64],
    ) -> Option<Self> {
        let square: f64 = planned.iter().map(|sum| sum * sum).sum();
        let product: f64 = planned.iter().zip(values).map(|(sum, value)| sum * value).sum();
        let average = Self::new(spec, Factor::exact(1.0 / replicas as f64), values);
        let nearest = Self::new(spec, Factor::exact(product / (square * UNIT)), values);
        let nearest = nearest.with_slack(nearest.tolerance / square.sqrt());
        let is_as_planned = |scale: &Self| {
            let mut pairs = planned.iter().zip(values);
            pairs.all(|(sum, value)| {
                (value / (UNIT * scale.factor.value) - sum).abs() <= scale.tolerance
            })
        };
        // If no element is due a gradient, any value is a slip, whatever the factor. Otherwise a slip shows in the
        // elements that should be 0 as much as in the others.
        let is_enough = square == 0.0 || planned.len() as f64 >= bounds::DETERMINED_BITS;
        if square > 0.0 && is_as_planned(&average) {
            Some(average)
        } else if is_enough {
            let is_nearest = nearest.factor.value > 0.0 && is_as_planned(&nearest);
            Some(if is_nearest {
                nearest
            } else {
                Self::new(spec, Factor::assumed(replicas), values)
            })
        } else {
            None
        }
    }

    /// Widens the tolerance for elements from which gradients of the first step, as large as `left`, were subtracted.
    pub fn after(self, spec: &RunSpec, left: f64) -> Self {
        let rounding = roundings(spec) as f64 * spec.dtype.unit_roundoff() * left;
        Self { tolerance: self.tolerance + rounding / (UNIT * self.factor.value), ..self }
    }

    fn with_slack(self, slack: f64) -> Self {
        Self { factor: Factor { slack, ..self.factor }, ..self }
    }

    fn new(spec: &RunSpec, factor: Factor, values: &[f64]) -> Self {
        let magnitude = largest(values.iter().map(|value| value.abs())) / (UNIT * factor.value);
        let tolerance = roundings(spec) as f64 * spec.dtype.unit_roundoff() * magnitude;
        Self { factor, tolerance }
    }
}

/// The weight of a gradient in a piece.
#[derive(Clone, Copy)]
struct GradientWeight {
    /// The rank of the gradient.
    rank: usize,
    value: f64,
    /// True if all gradients in the piece have the same weight.
    is_even: bool,
}

/// True if both weights are the same except for rounding.
fn is_same(a: f64, b: f64) -> bool {
    (b / a - 1.0).abs() < bounds::SAME_SCALE
}

/// Returns the factor that most gradients have in common; `None` if all weights are 0.
fn common_factor(replicas: usize, weights: &[GradientWeight]) -> Option<Factor> {
    let most = largest(weights.iter().map(|it| it.value.abs()));
    let is_there = |weight: f64| weight.abs() > most * NOISE;
    let mut there: Vec<(f64, bool)> = weights
        .iter()
        .map(|it| (it.value.abs(), it.is_even))
        .filter(|(value, _)| is_there(*value))
        .collect();
    let average = 1.0 / replicas as f64;
    let common = most_common(&mut there, average)?;
    // If all gradients of other ranks are missing, a rank's own gradients may have been added several times.
    let multiple = common.value / average;
    let is_multiple = (multiple - multiple.round()).abs() < bounds::SAME_SCALE
        && (2.0..=replicas as f64).contains(&multiple.round());
    let ranks = |of: &dyn Fn(f64) -> bool| -> BTreeSet<usize> {
        weights.iter().filter(|it| of(it.value)).map(|it| it.rank).collect()
    };
    let lacks_ranks = ranks(&is_there) != ranks(&|_| true);
    // The gradients of some microbatches may be averaged; of the other microbatches, a rank has only its own gradients.
    let is_common = |value: f64| is_same(value.abs(), common.value);
    let is_known = |value: f64| is_common(value) || is_same(value, average);
    let is_of_own = ranks(&is_common) != ranks(&|_| true)
        && weights.iter().all(|it| is_known(it.value) || !is_there(it.value));
    let is_assumed = is_multiple && (lacks_ranks || is_of_own);
    Some(if is_assumed { Factor::assumed(replicas) } else { common })
}

/// The number of times that a sum of codes may be rounded on its way.
fn roundings(spec: &RunSpec) -> usize {
    let divided = if spec.world_size.is_power_of_two() { 0 } else { spec.world_size };
    bounds::FACTORS + divided
}

/// Returns the mean of the largest group of equal numbers. The flag of a number is true if all gradients in its piece
/// have the same weight (the piece is *even*). A group of at least half that size, nearer to `expected` and made only
/// of even pieces, is preferred, because a mistake may affect most parameters.
fn most_common(numbers: &mut [(f64, bool)], expected: f64) -> Option<Factor> {
    numbers.sort_by(|a, b| a.0.total_cmp(&b.0));
    let same = |a: &(f64, bool), b: &(f64, bool)| is_same(a.0, b.0);
    let most = numbers.chunk_by(same).map(<[_]>::len).max()?;
    let is_large = |group: &&[(f64, bool)]| {
        group.len() == most || 2 * group.len() >= most && group.iter().all(|it| it.1)
    };
    let distance = |group: &&[(f64, bool)]| (group[group.len() / 2].0 / expected).ln().abs();
    let groups = numbers.chunk_by(same).filter(is_large);
    let best = groups.min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
    let count = best.len() as f64;
    let value = best.iter().map(|it| it.0).sum::<f64>() / count;
    let spread = best.iter().map(|it| (it.0 / value - 1.0).powi(2)).sum::<f64>().sqrt();
    Some(Factor { slack: STANDARD_ERRORS * spread / count, ..Factor::exact(value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::SpecRequest;

    #[test]
    fn the_common_factor_is_that_of_most_or_of_whole_parameters_that_are_averaged() {
        let of = |numbers: &[(f64, bool)]| {
            most_common(&mut numbers.to_vec(), 0.5).map(|factor| factor.value)
        };
        assert_eq!(of(&[]), None);
        // Four parameters that two optimizers hold, and two that one optimizer holds.
        let twice = [(1.0, true); 4];
        assert_eq!(of(&[&twice[..], &[(0.5, true); 2]].concat()), Some(0.5));
        assert_eq!(of(&[&twice[..], &[(0.5, true); 1]].concat()), Some(1.0));
        // One of three microbatches was counted twice, with gradients multiplied by 0.25.
        assert_eq!(of(&[(0.25, false), (0.25, false), (0.5, false)]), Some(0.25));
    }

    #[test]
    fn gradients_of_the_own_rank_beside_averaged_ones_are_not_the_common_factor() {
        let of = |others: f64| {
            let weight = |rank, value| GradientWeight { rank, value, is_even: false };
            let averaged = [weight(0, 0.5), weight(1, 0.5)];
            let alone = [weight(0, 1.0), weight(1, others)].repeat(3);
            common_factor(2, &[&averaged[..], &alone].concat()).map(|factor| factor.value)
        };
        assert_eq!(of(0.0), Some(0.5));
        assert_eq!(of(1.0), Some(1.0));
    }

    #[test]
    fn a_common_factor_of_a_few_elements_is_told_from_a_lost_gradient() {
        let request = SpecRequest {
            world_size: Some(1),
            gradient_accumulation_steps: Some(4),
            steps: Some(4),
            ..SpecRequest::default()
        };
        let spec = request.resolve().expect("a valid request");
        let code = Code::new(16, 0);
        let scale_of = |first: usize, lost: Option<usize>, elements: usize| {
            let sum = |element| -> f64 {
                let columns = (first..first + 4).filter(|column| Some(*column) != lost);
                columns.map(|column| f64::from(code.value(column, element))).sum()
            };
            let planned: Vec<f64> = (0..elements)
                .map(|element| {
                    (first..first + 4).map(|it| f64::from(code.value(it, element))).sum()
                })
                .collect();
            let values: Vec<f64> = (0..elements).map(|element| UNIT * sum(element) / 4.0).collect();
            CommonScale::of_few(&spec, 1, &planned, &values).map(|scale| scale.factor.value)
        };
        for first in [0, 4, 8, 12] {
            for elements in 8..16 {
                assert_eq!(scale_of(first, None, elements), Some(0.25), "{first}, {elements}");
                for lost in first..first + 4 {
                    let factor = scale_of(first, Some(lost), elements);
                    assert_eq!(factor, Some(1.0), "{first}, {elements}, {lost}");
                }
            }
            assert_eq!(scale_of(first, None, 7), None, "{first}");
        }
    }
}
