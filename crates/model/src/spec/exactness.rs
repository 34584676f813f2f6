//! Proof that the sums of a run's codes stay exact where the worst case would not.
//!
//! Each gradient has a pseudo-random sign, so a sum of `n` codes is about `√n`, and many more than
//! 256 gradients can be summed in bf16. This is not assumed: every sum that a correct engine can
//! form is computed with the seed of the run.

use super::{Plan, RunSpec};

/// Largest number of values for which the sums are computed.
const MOST_VALUES: usize = 1 << 27;

/// True if all sums of gradients stay within `-limit..=limit`: each rank's running sum over its
/// microbatches, and the sums of these over any ranks in any order.
///
/// Most shapes leave gradients out, which makes other sums: the answer is false for every run with
/// shapes.
pub(super) fn sums_stay_within(spec: &RunSpec, limit: usize) -> bool {
    let code = Plan::code(spec);
    let values = spec.contributions() * code.length();
    // A microbatch that is reduced by itself sums to the number of ranks at most.
    if !spec.shapes.is_empty() || values > MOST_VALUES || spec.world_size > limit {
        return false;
    }
    let limit = limit as i64;
    let holds = |step: usize, element: usize| {
        let mut sums = vec![0; spec.world_size];
        (0..spec.gradient_accumulation_steps).all(|microbatch| {
            for (rank, sum) in sums.iter_mut().enumerate() {
                *sum += i64::from(code.value(spec.column(step, rank, microbatch), element));
            }
            // Over all subsets of ranks, the largest sum is that of all positive ones.
            let positive: i64 = sums.iter().filter(|sum| **sum > 0).sum();
            let negative: i64 = sums.iter().filter(|sum| **sum < 0).sum();
            positive.max(-negative) <= limit
        })
    };
    // Codes repeat, except for the signs of elements, which flip all gradients alike.
    (0..spec.code_steps()).all(|step| (0..code.length()).all(|element| holds(step, element)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Dtype, Shape, SpecRequest};

    fn request(ga: usize) -> SpecRequest {
        let bf16 = Some(Dtype::Bf16);
        SpecRequest {
            world_size: Some(8),
            gradient_accumulation_steps: Some(ga),
            grad_accum_dtype: bf16,
            comm_dtype: bf16,
            ..SpecRequest::default()
        }
    }

    #[test]
    fn hundreds_of_gradients_are_exact_in_bf16_if_their_own_sums_are() {
        let spec = request(64).resolve().expect("512 gradients stay exact");
        assert!(sums_stay_within(&spec, 256));
        // Rank sums of 64 signs are about 8, and 8 of them reach this somewhere.
        assert!(!sums_stay_within(&spec, 32));
        let unused = SpecRequest { shapes: vec![Shape::UnusedLast], ..request(64) };
        assert!(unused.resolve().is_err());
    }

    #[test]
    fn sums_that_outgrow_the_dtype_are_refused() {
        assert!(request(1 << 14).resolve().is_err());
    }
}
