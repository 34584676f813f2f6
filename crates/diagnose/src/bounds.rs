//! Every bound by which the diagnosis tells rounding from a slip, with its source. A number that was
//! chosen says so.
//!
//! `u` is the unit roundoff of a dtype ([`Dtype::unit_roundoff`]). Where codes add up exactly, no
//! bound is needed: see [`coded`].

use zprobe_model::spec::code::Code;
use zprobe_model::spec::{Dtype, RunSpec};

/// `γ(n) = n·u/(1−n·u)`, the relative error of `n` operations (Higham, Accuracy and Stability of
/// Numerical Algorithms, 2002, lemma 3.1); from `n·u = 1` on there is no bound.
pub fn gamma(operations: usize, dtype: Dtype) -> f64 {
    let product = operations as f64 * dtype.unit_roundoff();
    if product < 1.0 { product / (1.0 - product) } else { f64::INFINITY }
}

/// Bound on the rounding error of an element of a coded buffer, in units of one contribution.
///
/// Codes, their sums and a division by a power of two are exact. A division by another number
/// rounds, to fp32: the loss is divided in fp32, and a narrower gradient rounds back to the
/// integer. In units of `u·W·GA`: 2 for each addend (the quotient and its product with `S`), 1 for
/// each of the `GA` and `W` additions, 1 for the average. Where the update is read back, `u` for
/// each of two weights, which have grown by `W·GA` in each of `steps` steps.
pub fn coded(spec: &RunSpec) -> f64 {
    if spec.world_size.is_power_of_two() && spec.gradient_accumulation_steps.is_power_of_two() {
        return 0.0;
    }
    let operations = spec.gradient_accumulation_steps + spec.world_size + 3;
    let gradient = operations * spec.contributions_per_step();
    let weights = 2 * (Code::MOST_INITIAL + (spec.steps + 1) * spec.contributions_per_step());
    (gradient + weights) as f64 * Dtype::Fp32.unit_roundoff()
}

/// Bound on the error that clipping adds to an element, as a share of the element: an engine
/// computes the factor with three operations in the gradient's dtype, and multiplies.
pub fn clipping(dtype: Dtype) -> f64 {
    gamma(4, dtype)
}

/// Bound on the error of an engine's norm of a gradient with so many elements, as a share of the
/// norm.
///
/// A sum of `n` squares in fp32, in any order, is off by at most `n·u`, however many they are; its
/// root by no more (Jeannerod and Rump, Improved Error Bounds for Inner Products in
/// Floating-Point Arithmetic, 2013). torch rounds the norm of each tensor, and that of these
/// norms, to the gradient's dtype: `γ(3)` there, for the two and the square between them.
pub fn norm(elements: usize, gradient: Dtype) -> f64 {
    (elements + 3) as f64 * Dtype::Fp32.unit_roundoff() + gamma(3, gradient)
}

/// Largest error of a coded element at which a weight, which is a whole number, can still be told
/// from its neighbour.
pub const BETWEEN_WEIGHTS: f64 = 0.5;

/// Largest distance of coded elements from whole numbers that is taken for their rounding error. An error of more than
/// a half looks like a small one, but where some errors are that large, others are in between.
const SEEN_ROUNDING: f64 = 0.25;

/// Fewest elements that show how large rounding errors are. Chosen: if one element in 50 had an error above
/// [`SEEN_ROUNDING`], 256 elements would have no such error with a probability of 1 in 170.
const ENOUGH_ELEMENTS: usize = 256;

/// The largest rounding error of the elements of a coded buffer, in contributions, as it shows in their distances from
/// whole numbers; none where the elements are too few, or some lie far from whole
/// numbers.
pub fn seen_rounding(elements: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut count, mut largest) = (0, 0.0_f64);
    for element in elements {
        count += 1;
        largest = largest.max((element - element.round()).abs());
    }
    (count >= ENOUGH_ELEMENTS && largest <= SEEN_ROUNDING).then_some(largest)
}

/// Largest difference between two elements of a coded buffer that count as the same, in
/// contributions: sums of codes are whole numbers, and each of the two may be off by half of this
/// bound.
pub const SAME_ELEMENT: f64 = 0.25;

/// Largest noise beside a deviation, as a share of it: eight roundings in bf16 (`u` = 2⁻⁸). Chosen and
/// not derived from the number of roundings in a run.
pub const NOISE_BESIDE_DEVIATION: f64 = 1.0 / 32.0;

/// Largest relative difference between two readings of the same wrong scale: four roundings in bf16
/// (`u` = 2⁻⁸). Two counts of microbatches or ranks that are mistaken for each other differ by more
/// than that if the larger one is at most 63.
pub const SAME_SCALE: f64 = 1.0 / 64.0;

/// Largest difference between the weights of two elements of a loss that count as the same, as a share
/// of the larger, where gradients are fp32. Chosen: far above the rounding of a sum over a vocabulary, and
/// below the difference that one token more or less makes in microbatches of up to a thousand.
pub const SAME_TOKEN: f64 = 1e-3;

/// Largest difference between the weights of two target tokens that count as the same, as a share of
/// the larger, where gradients are narrower than fp32: two roundings in bf16 (`u` = 2⁻⁸).
pub const SAME_TOKEN_NARROW: f64 = 1.0 / 128.0;

/// Largest difference of a number that a loss is divided by from a whole one, as a share of it, where gradients are fp32.
/// Chosen: some roundings of an fp32 number (`u` = 2⁻²⁴) for each of several divisions.
pub const COUNT: f64 = 1e-5;

/// Largest difference between the sum of the weights of a loss and that of a mean, as a share of one, where gradients
/// are fp32. Chosen: twice [`SAME_TOKEN`], for the sum and for the factor behind the loss.
pub const SAME_SUM: f64 = 2e-3;

/// Largest error of a number of samples that is read as a whole one. Chosen, far below the half at which any
/// number would be whole: ten equally long neighbours in fp32, and one sample where gradients are narrower.
pub const COUNTABLE: f64 = 0.01;

/// Number of standard errors of the least squares by which a weight may be off: beyond six are 2 of
/// 10⁹ weights, so that thousands of weights in thousands of runs raise no false alarm.
pub const STANDARD_ERRORS: f64 = 6.0;

/// Number of factors that an element of a gradient may be multiplied with on its way, each of them
/// rounded: `1/GA` into the loss, `1/W` before or after the sum over ranks, or one part of it on
/// either side, and a loss scale taken out.
pub const FACTORS: usize = 4;

/// Boundary between the rounding errors of fp16 and bf16 in a sum of up to a dozen addends, as a
/// share of the norm of the sum: bf16 (`u` = 2⁻⁸) leaves more, fp16 (2⁻¹¹) less. Chosen between the
/// two and not derived.
pub const BETWEEN_FP16_AND_BF16: f64 = 6.9e-4;

/// Largest distance of a buffer from a sum in fewer bits than were asked for, as a share of its distance from
/// every sum that was asked for, with which the narrower sum is what it holds. Chosen: a sum that is computed
/// as the engine did leaves nothing, and noise of another origin is as far from one sum as from the other.
pub const NEARER: f64 = 0.5;

/// Probability that elements agree by chance with weights that they do not hold, or with elements of another
/// place, as the number `n` in 2⁻ⁿ: two different sets of weights agree in every other element, at most, and
/// the signs of elements are those of chance.
pub const DETERMINED_BITS: f64 = 8.0;

/// The same for a displaced piece that leaves most around it unexplained, so that it was looked for in many
/// places.
pub const CHANCE_BITS: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::SpecRequest;

    #[test]
    fn more_operations_may_round_more_however_many_they_are() {
        let counts = [1, 1 << 10, 1 << 24, 1 << 28];
        for pair in counts.windows(2) {
            let [few, many] = [pair[0], pair[1]].map(|elements| norm(elements, Dtype::Fp32));
            assert!(0.0 < few && few < many && many.is_finite(), "{pair:?}: {few} and {many}");
        }
        for dtype in [Dtype::Bf16, Dtype::Fp16, Dtype::Fp32] {
            let [few, enough] = [0.5, 1.0].map(|product| product / dtype.unit_roundoff());
            assert_eq!([few, enough].map(|n| gamma(n as usize, dtype)), [1.0, f64::INFINITY]);
        }
    }

    #[test]
    fn codes_round_only_where_something_is_divided_by_no_power_of_two() {
        let bound = |world, ga| {
            let request = SpecRequest {
                world_size: Some(world),
                gradient_accumulation_steps: Some(ga),
                ..SpecRequest::default()
            };
            coded(&request.resolve().unwrap())
        };
        assert_eq!([bound(2, 4), bound(1, 1), bound(4, 2)], [0.0; 3]);
        assert!(0.0 < bound(3, 4) && bound(3, 4) < bound(3, 8));
    }
}
