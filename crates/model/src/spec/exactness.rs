//! Proves that the sums of a run's codes stay exact even if sums in the worst case would not.
//!
//! Each gradient has a pseudo-random sign, so a sum of `n` codes is about `√n`, and many more than 256 gradients
//! can be summed in bf16. zprobe does not assume this: it computes every sum that a correct engine can form, with
//! the seed of the run.

use super::{Plan, RunSpec};

/// The maximum number of values for which the sums are computed.
const MOST_VALUES: usize = 1 << 27;

/// True if all sums of gradients stay within `-limit..=limit`: each rank's running sum over its microbatches, and
/// the sums of these running sums over any ranks in any order.
///
/// Most shapes leave out gradients, which makes other sums, so the answer is false for every run with shapes.
pub(super) fn sums_stay_within(spec: &RunSpec, limit: usize) -> bool {
    let code = Plan::code(spec);
    let values = spec.contributions() * code.length();
    // If a microbatch is reduced by itself, its sum is at most the number of ranks.
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
            // Among the sums over all subsets of ranks, the largest is the sum of all positive values.
            let positive: i64 = sums.iter().filter(|sum| **sum > 0).sum();
            let negative: i64 = sums.iter().filter(|sum| **sum < 0).sum();
            positive.max(-negative) <= limit
        })
    };
    // The codes repeat, except for the signs of the elements, which flip all gradients of an element alike.
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
        // The sums of 64 signs are about 8, and the sum of 8 such sums exceeds 32 somewhere.
        assert!(!sums_stay_within(&spec, 32));
        let unused = SpecRequest { shapes: vec![Shape::UnusedLast], ..request(64) };
        assert!(unused.resolve().is_err());
    }

    #[test]
    fn sums_that_outgrow_the_dtype_are_refused() {
        assert!(request(1 << 14).resolve().is_err());
    }
}
