//! The precision with which gradients were added up, which shows only in dense data.
//!
//! Integers of the coded model are exact in every dtype, so that they do not show the dtype of a sum. Dense gradients
//! are rounded in each addition, by about `u` of the dtype. The difference between a buffer and the sum in fp64
//! therefore shows how many bits the sum had, whatever dtype the buffer has now.

use zprobe_model::spec::{Dtype, RunSpec};
use zprobe_model::trace::Point;
use zprobe_report::Precision;

use super::sums::Narrower;
use crate::bounds::{BETWEEN_FP16_AND_BF16, FACTORS, gamma};

/// The difference between a buffer and its planned content.
pub(super) struct Remainder {
    /// The norm of the difference, as a share of the norm of the sum.
    share: f64,
    operations: usize,
}

impl Remainder {
    /// Compares a buffer at `point` with the plan; `elements` are pairs of the held value and the planned value.
    pub fn new(spec: &RunSpec, point: Point, elements: impl Iterator<Item = (f64, f64)>) -> Self {
        let (mut left, mut sum) = (0.0, 0.0);
        for (held, due) in elements {
            left += f64::powi(held - due, 2);
            sum += due.powi(2);
        }
        let share = if left == 0.0 { 0.0 } else { (left / sum).sqrt() };
        let across = if is_of_one_rank(point) { 0 } else { spec.world_size + 2 };
        Self { share, operations: spec.gradient_accumulation_steps + across + FACTORS }
    }

    /// True if the planned sum is not 0, so that the difference can be compared with it.
    pub fn is_known(&self) -> bool {
        self.share.is_finite()
    }

    /// Returns the dtype whose rounding leaves a difference of this size.
    fn seen(&self) -> Dtype {
        if self.share <= gamma(self.operations, Dtype::Fp32) {
            Dtype::Fp32
        } else if self.share < BETWEEN_FP16_AND_BF16 {
            Dtype::Fp16
        } else {
            Dtype::Bf16
        }
    }

    /// Returns the entry of the report. `narrower` is a sum that was found to run in a narrower dtype than requested.
    pub fn precision(&self, spec: &RunSpec, point: Point, narrower: Option<Narrower>) -> Precision {
        let relative_error = self.share;
        if let Some(Narrower { over, asked, seen }) = narrower {
            return Precision {
                point,
                asked,
                as_exact_as: seen,
                relative_error,
                narrower: Some(over),
            };
        }
        // The share of the norm only names the dtype.
        let (asked, seen) = (asked(spec, point), self.seen());
        let as_exact_as = if seen.is_narrower_than(asked) { asked } else { seen };
        Precision { point, asked, as_exact_as, relative_error, narrower: None }
    }
}

/// Merges the precision of one buffer into those of other buffers at the same point. The least exact precision counts.
pub(super) fn add(all: &mut Vec<Precision>, seen: Precision) {
    match all.iter_mut().find(|known| known.point == seen.point) {
        Some(known) => {
            let relative_error = known.relative_error.max(seen.relative_error);
            let is_worse = seen.as_exact_as.is_narrower_than(known.as_exact_as);
            let (was_named, is_named) = (known.narrower.is_some(), seen.narrower.is_some());
            if is_named && !was_named || is_named == was_named && is_worse {
                *known = seen;
            }
            known.relative_error = relative_error;
        }
        None => {
            let place = all.partition_point(|known| known.point < seen.point);
            all.insert(place, seen);
        }
    }
}

/// Returns the narrowest dtype in which a sum at this point may run. For an fp16 model that is fp16 at best, because
/// gradients that the engine multiplies by a loss scale are rounded differently from the recorded ones.
pub(super) fn asked(spec: &RunSpec, point: Point) -> Dtype {
    let wire = (!is_of_one_rank(point)).then(|| spec.narrowest_comm_dtype());
    let scaled = (spec.dtype == Dtype::Fp16).then_some(Dtype::Fp16);
    let dtypes = [Some(spec.grad_accum_dtype), wire, scaled].into_iter().flatten();
    dtypes.min_by_key(|dtype| dtype.exact_integers()).unwrap_or(spec.grad_accum_dtype)
}

/// True if a buffer at this point holds only one rank's own gradients, before any reduction.
pub(super) fn is_of_one_rank(point: Point) -> bool {
    matches!(point, Point::LocalGradient | Point::Accumulator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::SpecRequest;

    /// Creates the remainder of sums of three addends in many elements, computed by `add`, compared with the exact
    /// sums.
    fn remainder(add: impl Fn(f64, f64) -> f64) -> Remainder {
        let elements = (0..500).map(|element| {
            let addends = [0.3, 0.7, 1.1].map(|phase| {
                let angle = f64::from(element) * phase;
                half::bf16::from_f64(angle.sin()).to_f64()
            });
            let held = addends.into_iter().reduce(&add).expect("there are three");
            (held, addends.iter().sum())
        });
        Remainder::new(&spec(), Point::OptimizerInput, elements)
    }

    fn spec() -> RunSpec {
        SpecRequest::default().resolve().expect("defaults are valid")
    }

    #[test]
    fn the_dtype_of_a_sum_shows_in_what_it_lost() {
        let bf16 = remainder(|a, b| half::bf16::from_f64(a + b).to_f64());
        let fp16 = remainder(|a, b| half::f16::from_f64(a + b).to_f64());
        let fp32 = remainder(|a, b| f64::from((a + b) as f32));
        assert_eq!(
            [bf16.seen(), fp16.seen(), fp32.seen()],
            [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32]
        );
    }

    #[test]
    fn beside_no_sum_nothing_is_known() {
        let is_known = |held, due| {
            Remainder::new(&spec(), Point::OptimizerInput, [(held, due)].into_iter()).is_known()
        };
        assert!(!is_known(1.0, 0.0));
        assert!(is_known(0.0, 0.0));
    }
}
