//! Precision with which gradients were added up, which only dense data show.
//!
//! Integers of the coded model are exact in every dtype, so that they do not show in which one a
//! sum ran. Dense gradients are rounded in each addition, by about `u` of the dtype: the difference
//! between a buffer and the sum in fp64 says how many bits the sum had, whatever the dtype that the
//! buffer has now.

use crate::report::Precision;
use crate::spec::{Dtype, RunSpec};
use crate::trace::Point;

use super::super::bounds::{BETWEEN_FP16_AND_BF16, FACTORS, gamma};

/// Difference between a buffer and what it should hold, element by element.
pub(super) struct Remainder {
    /// Difference of each element, and the sum of the absolute values of its addends.
    elements: Vec<(f64, f64)>,
    /// Norm of the difference, as a share of the norm of the sum.
    share: f64,
    operations: usize,
}

impl Remainder {
    /// Compares a buffer at `point`. `elements` are what it holds, what it should hold, and the sum
    /// of the addends' absolute values.
    pub fn new(
        spec: &RunSpec,
        point: Point,
        elements: impl Iterator<Item = (f64, f64, f64)>,
    ) -> Self {
        let (mut left, mut sum) = (0.0, 0.0);
        let elements = elements
            .map(|(held, due, size)| {
                left += (held - due).powi(2);
                sum += due.powi(2);
                (held - due, size)
            })
            .collect();
        let share = if left == 0.0 { 0.0 } else { (left / sum).sqrt() };
        let across = if is_of_one_rank(point) { 0 } else { spec.world_size + 2 };
        Self { elements, share, operations: spec.gradient_accumulation_steps + across + FACTORS }
    }

    /// True if there is a sum to compare with.
    pub fn is_known(&self) -> bool {
        self.share.is_finite()
    }

    /// The dtype whose rounding leaves such a difference.
    fn seen(&self) -> Dtype {
        if self.share <= gamma(self.operations, Dtype::Fp32) {
            Dtype::Fp32
        } else if self.share < BETWEEN_FP16_AND_BF16 {
            Dtype::Fp16
        } else {
            Dtype::Bf16
        }
    }

    /// True if this is the difference that rounding in a dtype narrower than `asked` leaves: no
    /// element is off by more than the bound of bf16, and most are off by more than that of
    /// `asked`. Foreign data is in some elements only, or is as large as they are.
    pub fn is_rounding_in_less_than(&self, asked: Dtype) -> bool {
        let seen = self.seen();
        let most = gamma(self.operations, Dtype::Bf16);
        let least = gamma(self.operations, asked);
        let beyond = self.elements.iter().filter(|(left, size)| left.abs() > least * size).count();
        seen.exact_integers() < asked.exact_integers()
            && self.elements.iter().all(|(left, size)| left.abs() <= most * size)
            && 2 * beyond > self.elements.len()
    }

    /// The report's entry. `is_wrong` tells that the sum was found to be in a narrower dtype than
    /// was asked for.
    pub fn precision(&self, spec: &RunSpec, point: Point, is_wrong: bool) -> Precision {
        let asked = asked(spec, point);
        let seen = self.seen();
        // The bounds decide whether a dtype is too narrow; the share of the norm only gives it a
        // name.
        let as_asked = !is_wrong && seen.exact_integers() < asked.exact_integers();
        Precision {
            point,
            asked,
            as_exact_as: if as_asked { asked } else { seen },
            relative_error: self.share,
        }
    }
}

/// Adds what was seen of one buffer to what was seen of others at the same point: the least exact
/// counts.
pub(super) fn add(all: &mut Vec<Precision>, seen: Precision) {
    match all.iter_mut().find(|known| known.point == seen.point) {
        Some(known) => {
            if seen.as_exact_as.exact_integers() < known.as_exact_as.exact_integers() {
                known.as_exact_as = seen.as_exact_as;
            }
            known.relative_error = known.relative_error.max(seen.relative_error);
        }
        None => {
            let place = all.partition_point(|known| known.point < seen.point);
            all.insert(place, seen);
        }
    }
}

/// The narrowest dtype in which a sum at this point may run. With an fp16 model that is fp16 at
/// best: gradients that the engine multiplies with a loss scale are rounded differently from the
/// recorded ones.
pub(super) fn asked(spec: &RunSpec, point: Point) -> Dtype {
    let wire = (!is_of_one_rank(point)).then(|| spec.narrowest_comm_dtype());
    let scaled = (spec.dtype == Dtype::Fp16).then_some(Dtype::Fp16);
    let dtypes = [Some(spec.grad_accum_dtype), wire, scaled].into_iter().flatten();
    dtypes.min_by_key(|dtype| dtype.exact_integers()).unwrap_or(spec.grad_accum_dtype)
}

/// True if a buffer at this point holds one rank's own gradients, which never crossed the ranks.
pub(super) fn is_of_one_rank(point: Point) -> bool {
    matches!(point, Point::LocalGradient | Point::Accumulator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SpecRequest;

    /// Three addends for each of many elements, and how `add` sums them.
    fn sums(add: impl Fn(f64, f64) -> f64) -> Vec<(f64, f64, f64)> {
        let bf16 = |value: f64| half::bf16::from_f64(value).to_f64();
        (0..500)
            .map(|element| {
                let addends = [0.3, 0.7, 1.1].map(|phase| {
                    let angle = f64::from(element) * phase;
                    bf16(angle.sin())
                });
                let held = addends.into_iter().reduce(&add).expect("there are three");
                let size = addends.iter().map(|addend| addend.abs()).sum();
                (held, addends.iter().sum(), size)
            })
            .collect()
    }

    fn remainder(elements: Vec<(f64, f64, f64)>) -> Remainder {
        let spec = SpecRequest::default().resolve().expect("defaults are valid");
        Remainder::new(&spec, Point::OptimizerInput, elements.into_iter())
    }

    #[test]
    fn the_dtype_of_a_sum_shows_in_what_it_lost() {
        let bf16 = remainder(sums(|a, b| half::bf16::from_f64(a + b).to_f64()));
        let fp16 = remainder(sums(|a, b| half::f16::from_f64(a + b).to_f64()));
        let fp32 = remainder(sums(|a, b| f64::from((a + b) as f32)));
        assert_eq!(
            [bf16.seen(), fp16.seen(), fp32.seen()],
            [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32]
        );
        assert!(bf16.is_rounding_in_less_than(Dtype::Fp32));
        assert!(!fp32.is_rounding_in_less_than(Dtype::Fp32));
        assert!(!bf16.is_rounding_in_less_than(Dtype::Bf16));
    }

    #[test]
    fn beside_no_sum_nothing_is_known() {
        assert!(!remainder(vec![(1.0, 0.0, 0.0)]).is_known());
        assert!(remainder(vec![(0.0, 0.0, 0.0)]).is_known());
    }

    #[test]
    fn foreign_data_is_no_rounding() {
        let in_few = |element: usize| if element < 9 { 1.003 } else { 1.0 };
        let in_all = |_| 1.5;
        for factor in [&in_few as &dyn Fn(usize) -> f64, &in_all] {
            let mut elements = sums(|a, b| f64::from((a + b) as f32));
            for (element, (held, ..)) in elements.iter_mut().enumerate() {
                *held *= factor(element);
            }
            assert!(!remainder(elements).is_rounding_in_less_than(Dtype::Fp32));
        }
    }
}
