//! The bounds by which the diagnosis tells rounding from a bug, each with its source. Where a number was chosen and
//! not derived, its comment says so.
//!
//! `u` is the unit roundoff of a dtype ([`Dtype::unit_roundoff`]). Where codes add up exactly, no
//! bound is needed: see [`coded`].

use zprobe_model::spec::code::Code;
use zprobe_model::spec::{CommHook, Dtype, RunSpec};

/// The bound `γ(n) = n·u/(1−n·u)` on the relative error of `n` operations (Higham, Accuracy and Stability of
/// Numerical Algorithms, 2002, lemma 3.1). The bound is infinite from `n·u = 1` on.
pub fn gamma(operations: usize, dtype: Dtype) -> f64 {
    let product = operations as f64 * dtype.unit_roundoff();
    if product < 1.0 { product / (1.0 - product) } else { f64::INFINITY }
}

/// The bound on the rounding error of one element of a coded buffer, in units of one contribution.
///
/// Codes, their sums and divisions by powers of two are exact. A division by another number rounds to fp32: the loss
/// is divided in fp32, and a narrower gradient rounds back to the integer. In units of `u·W·GA`, the bound counts 2
/// for each addend (the quotient and its product with `S`), 1 for each of the `GA` and `W` additions, and 1 for the
/// average. Where the update is read back, it counts `u` for each of two weights, which have grown by `W·GA` in each
/// of `steps` steps.
///
/// A communication hook that approximates gradients adds its own error (`approximation`).
pub fn coded(spec: &RunSpec) -> f64 {
    let approximation = approximation(spec);
    let divides_exactly =
        spec.world_size.is_power_of_two() && spec.gradient_accumulation_steps.is_power_of_two();
    if divides_exactly && approximation == 0.0 {
        return 0.0;
    }
    let operations = spec.gradient_accumulation_steps + spec.world_size + 3;
    let gradient = operations * spec.contributions_per_step();
    let weights = 2 * (Code::MOST_INITIAL + (spec.steps + 1) * spec.contributions_per_step());
    (gradient + weights) as f64 * Dtype::Fp32.unit_roundoff() + approximation
}

/// The largest rank of a matrix of the coded model that `powerSGD_hook` compresses. A taller matrix is not compressed.
const COMPRESSED_RANK: usize = 4;

/// The bound on the error that PowerSGD's approximation of the full rank adds to an element of the average, in units of
/// one contribution; 0 for other communication hooks.
///
/// PowerSGD replaces a matrix `M` of rank `k` by `P·Pᵀ·M`, where the columns of `P`, from Householder's QR, are an
/// orthonormal basis: the result is `M` but for rounding. A sum of absolute values in a row of `P·Pᵀ` is at most `k`.
/// In units of `u·k·W·GA`, the bound counts `2·k + W + 1` for both products and the average, and `10·k²` for each of
/// the two factors `P` (Higham, theorem 19.4, with 10 for the small constant). The error feedback adds to a rank's
/// gradient its difference from the average in each earlier step, at most `2·W·GA`.
fn approximation(spec: &RunSpec) -> f64 {
    if spec.ddp().is_none_or(|ddp| ddp.comm_hook != CommHook::PowerSgdFullRank) {
        return 0.0;
    }
    let operations = 2 * COMPRESSED_RANK + spec.world_size + 1 + 20 * COMPRESSED_RANK.pow(2);
    let largest = (2 * spec.steps + 1) * spec.contributions_per_step();
    (operations * COMPRESSED_RANK * largest) as f64 * Dtype::Fp32.unit_roundoff()
}

/// The bound on the error that clipping adds to an element, as a share of the element. An engine computes the factor
/// with three operations in the gradient's dtype and multiplies by the factor.
pub fn clipping(dtype: Dtype) -> f64 {
    gamma(4, dtype)
}

/// The bound on the error of an engine's norm of a gradient with `elements` elements, as a share of the norm.
///
/// A sum of `n` squares in fp32, in any order, is off by at most `n·u`, for any `n`, and so is its root (Jeannerod
/// and Rump, Improved Error Bounds for Inner Products in Floating-Point Arithmetic, 2013). torch rounds the norm of
/// each tensor and the norm of these norms to the gradient's dtype. Together with the square in between, these
/// roundings add `γ(3)`.
pub fn norm(elements: usize, gradient: Dtype) -> f64 {
    (elements + 3) as f64 * Dtype::Fp32.unit_roundoff() + gamma(3, gradient)
}

/// The largest error of a coded element at which its weight, a whole number, can still be told from the next whole
/// number.
pub const BETWEEN_WEIGHTS: f64 = 0.5;

/// The largest distance of coded elements from whole numbers that counts as their rounding error. An error of more
/// than one half looks like a small one, but then other elements have errors in between, which exceed this bound.
const SEEN_ROUNDING: f64 = 0.25;

/// The smallest number of elements that shows how large rounding errors are. Chosen: if one element in 50 had an
/// error above [`SEEN_ROUNDING`], 256 elements would have no such error with a probability of 1 in 170.
const ENOUGH_ELEMENTS: usize = 256;

/// Returns the largest rounding error of the elements of a coded buffer, in contributions, measured as the distance
/// from whole numbers. `None` if the elements are too few or some lie far from whole numbers.
pub fn seen_rounding(elements: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut count, mut largest) = (0, 0.0_f64);
    for element in elements {
        count += 1;
        largest = largest.max((element - element.round()).abs());
    }
    (count >= ENOUGH_ELEMENTS && largest <= SEEN_ROUNDING).then_some(largest)
}

/// The largest difference, in contributions, between two elements of a coded buffer that count as the same. Sums of
/// codes are whole numbers, and each of the two elements may be off by half of this bound.
pub const SAME_ELEMENT: f64 = 0.25;

/// The largest noise next to a deviation, as a share of the deviation: eight roundings in bf16 (`u` = 2⁻⁸). Chosen,
/// and not derived from the number of roundings in a run.
pub const NOISE_BESIDE_DEVIATION: f64 = 1.0 / 32.0;

/// The largest relative difference between two readings of the same wrong scale: four roundings in bf16 (`u` = 2⁻⁸).
/// Two counts of microbatches or ranks that are mistaken for each other differ by more than this bound if the larger
/// count is at most 63.
pub const SAME_SCALE: f64 = 1.0 / 64.0;

/// The largest difference between the weights of two elements of a loss that count as the same, as a share of the
/// larger weight, for fp32 gradients. Chosen: far above the rounding of a sum over a vocabulary, and below the
/// difference that one token makes in microbatches of up to a thousand tokens.
pub const SAME_TOKEN: f64 = 1e-3;

/// The largest difference between the weights of two target tokens that count as the same, as a share of the larger
/// weight, for gradients narrower than fp32: two roundings in bf16 (`u` = 2⁻⁸).
pub const SAME_TOKEN_NARROW: f64 = 1.0 / 128.0;

/// The largest difference between a loss's divisor and the closest whole number, as a share of the divisor, for fp32
/// gradients. Chosen: some roundings of an fp32 number (`u` = 2⁻²⁴) for each of several divisions.
pub const COUNT: f64 = 1e-5;

/// The largest difference between the sum of a loss's weights and the sum of a mean's weights, as a share of 1, for
/// fp32 gradients. Chosen: twice [`SAME_TOKEN`], once for the sum and once for the factor after the loss.
pub const SAME_SUM: f64 = 2e-3;

/// The largest error of a number of samples that still counts as a whole number. Chosen, far below one half, where
/// any number would be whole: ten neighbours of equal length in fp32, and one sample where gradients are narrower.
pub const COUNTABLE: f64 = 0.01;

/// The number of standard errors of the least squares by which a weight may be off. Only 2 of 10⁹ weights lie beyond
/// six, so that thousands of weights in thousands of runs raise no false alarm.
pub const STANDARD_ERRORS: f64 = 6.0;

/// The number of factors that multiply an element of a gradient on its way, each with a rounding: `1/GA` in the loss,
/// `1/W` before or after the sum over ranks (or split between the two), and the removal of a loss scale.
pub const FACTORS: usize = 4;

/// The boundary between the rounding errors of fp16 and bf16 in a sum of up to a dozen addends, as a share of the
/// norm of the sum: bf16 (`u` = 2⁻⁸) leaves more, fp16 (2⁻¹¹) less. Chosen between the two errors, and not derived.
pub const BETWEEN_FP16_AND_BF16: f64 = 6.9e-4;

/// The largest distance of a buffer from a sum in too few bits at which the buffer counts as that sum, as a share of
/// its distance from every requested sum. Chosen: a sum computed as the engine did leaves no difference, and noise
/// from elsewhere is equally far from all sums.
pub const NEARER: f64 = 0.5;

/// The largest probability that elements agree by chance with the wrong weights or with elements of another place, as
/// the number `n` in 2⁻ⁿ. Two different sets of weights agree in at most every other element, and the signs of
/// elements are pseudo-random.
pub const DETERMINED_BITS: f64 = 8.0;

/// The largest probability of chance agreement, as the number `n` in 2⁻ⁿ, for a displaced piece that leaves most
/// elements around it unexplained, because such a piece was searched for at many places.
pub const CHANCE_BITS: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::{Engine, SpecRequest};

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

    #[test]
    fn an_approximation_of_the_full_rank_leaves_weights_readable() {
        let bound = |hook| {
            let request = SpecRequest {
                engine: Some(Engine::Ddp),
                dtype: Some(Dtype::Fp32),
                steps: Some(4),
                comm_hook: Some(hook),
                ..SpecRequest::default()
            };
            coded(&request.resolve().unwrap())
        };
        assert_eq!(bound(CommHook::PowerSgd), 0.0);
        assert!((1e-6..1e-2).contains(&bound(CommHook::PowerSgdFullRank)));
    }
}
