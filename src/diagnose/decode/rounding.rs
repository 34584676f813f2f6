//! What rounding may do to coded gradients.

use crate::spec::code::Code;
use crate::spec::{Dtype, RunSpec};

/// How far rounding may move an element, in units of one contribution.
///
/// Codes, their sums and a division by a power of two are exact. A division by another number
/// rounds, to fp32: the loss is divided in fp32, and a narrower gradient rounds back to the
/// integer. In units of `u·W·GA`: 2 for each addend (the quotient and its product with `S`), 1 for
/// each of the `GA` and `W` additions, 1 for the average. Where the update is read back, `u` for
/// each of two weights, which have grown by `W·GA` in each of `steps` steps.
pub(super) fn rounding_bound(spec: &RunSpec) -> f64 {
    if spec.world_size.is_power_of_two() && spec.gradient_accumulation_steps.is_power_of_two() {
        return 0.0;
    }
    let operations = spec.gradient_accumulation_steps + spec.world_size + 3;
    let gradient = operations * spec.contributions_per_step();
    let weights = 2 * (Code::MOST_INITIAL + (spec.steps + 1) * spec.contributions_per_step());
    (gradient + weights) as f64 * Dtype::Fp32.unit_roundoff()
}
