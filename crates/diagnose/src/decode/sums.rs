//! Sums of dense gradients, recomputed as an engine may have computed them, to find the dtypes of the sums.
//!
//! The local gradients of every rank and microbatch are known bit for bit, and additions in a dtype are reproducible.
//! So each sum is recomputed in each pair of dtypes, over the microbatches and over the ranks, and in each order that
//! engines use. A sum ran in fewer bits than requested if such a computation matches the buffer much better than
//! every requested computation. Noise of another origin is close to none of them.

use zprobe_model::spec::{Dtype, RunSpec};
use zprobe_model::trace::Point;
use zprobe_report::Over;

use super::precision::is_of_one_rank;
use crate::bounds::{FACTORS, NEARER, gamma};

/// The largest number of compared elements of a buffer, times the number of ranks.
const ELEMENTS: usize = 2048;

/// The share of elements that may be rounded to the other side is one in this number: additions in another order may
/// yield another fp32 number, which is a tie in a narrower dtype.
const TIES: usize = 16;

/// The distance between subnormal numbers of fp16.
const FP16_SPACING: f64 = 1.0 / (1 << 24) as f64;

/// The local gradients of a step that a buffer should hold as a sum.
pub(super) struct StepAddends {
    /// The elements of each gradient as recorded, divided by `GA`, by rank and by microbatch.
    addends: Vec<Vec<Vec<f64>>>,
    /// True if the buffer holds the gradients of several ranks.
    is_across: bool,
    /// The dtype of the gradients that autograd computes.
    computed_in: Dtype,
    /// The dtype in which the buffer was recorded.
    held_in: Dtype,
}

/// The dtypes in which a sum runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arithmetic {
    /// The dtype of the sum over the microbatches.
    accum: Dtype,
    /// The dtype of the sum over the ranks.
    wire: Dtype,
}

/// A sum that ran in fewer bits than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Narrower {
    /// The kind of sum: over microbatches or over ranks.
    pub over: Over,
    /// The requested dtype.
    pub asked: Dtype,
    /// The dtype in which the sum ran.
    pub seen: Dtype,
}

/// The order in which an engine computes a sum.
#[derive(Clone, Copy)]
struct SumOrder {
    /// True if every microbatch is reduced by itself, as in ZeRO-2; false if a rank first adds up its own
    /// microbatches.
    reduces_first: bool,
    /// The place of the division by the number of ranks.
    division: Division,
    /// The dtype in which the average over the ranks is added to earlier ones: the dtype of the wire if only the sum
    /// is cast, or else the dtype of the accumulator.
    returned_in: Dtype,
}

/// The place of the division by the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Division {
    /// The division runs first, in the dtype of the gradients, as in the scatter part of DeepSpeed's
    /// `average_tensor`.
    InGradients,
    /// The division runs before the cast to the dtype of the wire.
    BeforeCast,
    /// The division runs after the cast and before the sum over ranks.
    BeforeSum,
    /// A product with the reciprocal runs after the cast and before the sum over ranks.
    ReciprocalBeforeSum,
    /// The division runs after the sum over ranks.
    AfterSum,
    /// A product with the reciprocal runs after the sum over ranks.
    ReciprocalAfterSum,
    /// The division runs after the sum over ranks was cast back.
    AfterCast,
}

impl Division {
    const ALL: [Self; 7] = [
        Self::BeforeCast,
        Self::InGradients,
        Self::BeforeSum,
        Self::ReciprocalBeforeSum,
        Self::AfterSum,
        Self::ReciprocalAfterSum,
        Self::AfterCast,
    ];
}

/// The order of the ranks in a sum over them. Ring reductions begin with another rank in each part of a buffer.
#[derive(Clone, Copy)]
struct Ring {
    /// The rank with which the sum begins.
    first: usize,
    /// True if the sum goes through the ranks in descending order.
    is_reversed: bool,
}

impl StepAddends {
    /// Collects the addends of a buffer. `gradient(rank, microbatch)` returns a local gradient as recorded, if the
    /// buffer holds it once. `None` for a point whose sum cannot be reproduced.
    pub fn new(
        spec: &RunSpec,
        point: Point,
        held_in: Dtype,
        gradient: impl Fn(usize, usize) -> Option<Vec<f64>>,
    ) -> Option<Self> {
        let is_sum = matches!(
            point,
            Point::Accumulator | Point::Reduced | Point::BeforeStep | Point::OptimizerInput
        );
        if !is_sum {
            return None;
        }
        let compared = ELEMENTS / spec.world_size;
        let addends: Vec<Vec<Vec<f64>>> = (0..spec.world_size)
            .map(|rank| {
                let of_rank =
                    (0..spec.gradient_accumulation_steps).filter_map(|m| gradient(rank, m));
                of_rank.map(|gradient| gradient.into_iter().take(compared).collect()).collect()
            })
            .filter(|of_rank: &Vec<_>| !of_rank.is_empty())
            .collect();
        Some(Self { addends, is_across: !is_of_one_rank(point), computed_in: spec.dtype, held_in })
    }

    /// Returns the sum that ran in fewer bits than requested; `None` if a requested sum is equally close to the held
    /// values.
    pub fn narrower(&self, spec: &RunSpec, held: &[f64]) -> Option<Narrower> {
        let asked = Arithmetic { accum: spec.grad_accum_dtype, wire: spec.narrowest_comm_dtype() };
        let all = Dtype::ALL.iter().flat_map(|&accum| {
            let wires = if self.is_across { Dtype::ALL } else { &[Dtype::Fp32] };
            wires.iter().map(move |&wire| Arithmetic { accum, wire })
        });
        let (as_asked, narrower): (Vec<_>, Vec<_>) = all.partition(|it| {
            !it.accum.is_narrower_than(asked.accum) && !it.wire.is_narrower_than(asked.wire)
        });
        let operations = spec.gradient_accumulation_steps + spec.world_size + FACTORS;
        let compared = self.addends.first()?.first()?.len();
        let norm = held.iter().take(compared).map(|value| value * value).sum::<f64>().sqrt();
        // Small numbers of fp16 are rounded by up to half the distance of its subnormal numbers. They are rounded
        // differently if a loss scale or the division by `GA` came before the cast.
        let is_fp16 = [self.computed_in, asked.accum, asked.wire].contains(&Dtype::Fp16);
        let smallest = if is_fp16 { FP16_SPACING / 2.0 } else { 0.0 };
        let subnormal = operations as f64 * smallest * (compared as f64).sqrt();
        let nothing = gamma(operations, Dtype::Fp32) * norm + subnormal;
        let mut least = f64::INFINITY;
        for candidate in as_asked {
            least = least.min(self.distance(candidate, held));
            if least <= nothing {
                return None;
            }
        }
        // Of equally close candidates, the widest dtypes are taken.
        let distances = narrower.into_iter().rev().map(|it| (self.distance(it, held), it));
        let (distance, seen) = distances.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
        if distance.is_nan() || distance >= NEARER * least {
            return None;
        }
        let of = |over, asked, seen: Dtype| {
            seen.is_narrower_than(asked).then_some(Narrower { over, asked, seen })
        };
        of(Over::Microbatches, asked.accum, seen.accum)
            .or_else(|| of(Over::Ranks, asked.wire, seen.wire))
    }

    /// Returns the norm of the difference between the `held` values and the closest sum in these dtypes. It leaves out
    /// the elements that differ most, because another order of the additions may round them to the other side.
    fn distance(&self, arithmetic: Arithmetic, held: &[f64]) -> f64 {
        let distances = self.orders(arithmetic).map(|order| {
            let sums: Vec<Vec<f64>> =
                self.rings().map(|ring| self.computed(arithmetic, order, ring)).collect();
            let length = sums.first().map_or(0, Vec::len);
            let squares = held.iter().take(length).enumerate().map(|(element, held)| {
                let differences = sums.iter().map(|sum| (sum[element] - held).powi(2));
                differences.fold(f64::INFINITY, f64::min)
            });
            let mut squares: Vec<f64> = squares.collect();
            squares.sort_unstable_by(f64::total_cmp);
            squares.iter().take(length - length / TIES).sum::<f64>().sqrt()
        });
        distances.fold(f64::INFINITY, f64::min)
    }

    /// Lists the orders in which engines compute in these dtypes. A division by a power of two is exact at every
    /// place, except for small numbers of fp16.
    fn orders(
        &self,
        Arithmetic { accum, wire }: Arithmetic,
    ) -> impl Iterator<Item = SumOrder> + use<> {
        let is_cast = self.is_across && accum != wire;
        let returned_in = [Some(accum), is_cast.then_some(wire)];
        let is_exact =
            self.addends.len().is_power_of_two() && ![accum, wire].contains(&Dtype::Fp16);
        let places = if is_exact { 1 } else { Division::ALL.len() };
        let flows: &[bool] = if self.is_across { &[false, true] } else { &[false] };
        flows.iter().flat_map(move |&reduces_first| {
            let divisions = Division::ALL.into_iter().take(places);
            divisions.flat_map(move |division| {
                let order = move |returned_in| SumOrder { reduces_first, division, returned_in };
                returned_in.into_iter().flatten().map(order)
            })
        })
    }

    /// Lists the orders in which a reduction may go through the ranks; one order is enough for two addends.
    fn rings(&self) -> impl Iterator<Item = Ring> {
        let world = self.addends.len();
        let firsts = if self.is_across && world > 2 { world } else { 1 };
        let directions: &[bool] = if firsts > 1 { &[false, true] } else { &[false] };
        (0..firsts).flat_map(move |first| {
            directions.iter().map(move |&is_reversed| Ring { first, is_reversed })
        })
    }

    /// Computes the sum in these dtypes and in this order.
    fn computed(&self, arithmetic: Arithmetic, order: SumOrder, ring: Ring) -> Vec<f64> {
        let accum = arithmetic.accum;
        let sum = if !self.is_across {
            self.addends.first().map_or_else(Vec::new, |own| added(own, accum))
        } else if order.reduces_first {
            let most = self.addends.iter().map(Vec::len).max().unwrap_or(0);
            let reduced = (0..most).map(|microbatch| {
                let of_ranks = self.addends.iter().filter_map(|own| own.get(microbatch));
                self.reduced(of_ranks.cloned().collect(), arithmetic, order, ring)
            });
            added(&reduced.collect::<Vec<_>>(), accum)
        } else {
            let of_ranks = self.addends.iter().map(|own| added(own, accum));
            self.reduced(of_ranks.collect(), arithmetic, order, ring)
        };
        sum.into_iter().map(|value| rounded(value, self.held_in)).collect()
    }

    /// Computes the average over the ranks.
    fn reduced(
        &self,
        mut of_ranks: Vec<Vec<f64>>,
        Arithmetic { accum, wire }: Arithmetic,
        SumOrder { division, returned_in, .. }: SumOrder,
        ring: Ring,
    ) -> Vec<f64> {
        let world = self.addends.len() as f64;
        let first = ring.first % of_ranks.len().max(1);
        of_ranks.rotate_left(first);
        if ring.is_reversed {
            of_ranks.reverse();
        }
        let cast = |values: &mut Vec<f64>, dtype: Dtype, place: Division| {
            let divisor = if place == division { world } else { 1.0 };
            for value in values {
                *value = rounded(*value / divisor, dtype);
            }
        };
        let multiply = |values: &mut Vec<f64>, place: Division| {
            if place == division {
                let factor = rounded(1.0 / world, wire);
                values.iter_mut().for_each(|value| *value = rounded(*value * factor, wire));
            }
        };
        for values in &mut of_ranks {
            if division == Division::InGradients {
                cast(values, self.computed_in, Division::InGradients);
            }
            cast(values, accum, Division::BeforeCast);
            values.iter_mut().for_each(|value| *value = rounded(*value, wire));
            cast(values, wire, Division::BeforeSum);
            multiply(values, Division::ReciprocalBeforeSum);
        }
        let mut sum = added(&of_ranks, wire);
        cast(&mut sum, wire, Division::AfterSum);
        multiply(&mut sum, Division::ReciprocalAfterSum);
        cast(&mut sum, returned_in, Division::AfterCast);
        sum
    }
}

/// Adds up the addends in order, with rounding after each addition.
fn added(addends: &[Vec<f64>], dtype: Dtype) -> Vec<f64> {
    let Some((first, others)) = addends.split_first() else { return Vec::new() };
    let mut sum: Vec<f64> = first.iter().map(|value| rounded(*value, dtype)).collect();
    for addend in others {
        for (sum, value) in sum.iter_mut().zip(addend) {
            *sum = rounded(*sum + value, dtype);
        }
    }
    sum
}

/// Rounds a value to the nearest number of a dtype.
fn rounded(value: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Bf16 => half::bf16::from_f64(value).to_f64(),
        Dtype::Fp16 => half::f16::from_f64(value).to_f64(),
        Dtype::Fp32 => f64::from(value as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::SpecRequest;

    const BF16: Dtype = Dtype::Bf16;
    const FP32: Dtype = Dtype::Fp32;

    /// Creates a run of `ranks` ranks and three microbatches of a bf16 model, with these requested dtypes.
    fn spec(ranks: usize, accum: Dtype, wire: Dtype) -> RunSpec {
        let request = SpecRequest {
            world_size: Some(ranks),
            gradient_accumulation_steps: Some(3),
            dtype: Some(BF16),
            grad_accum_dtype: Some(accum),
            comm_dtype: Some(wire),
            ..SpecRequest::default()
        };
        request.resolve().expect("a valid request")
    }

    fn sums(spec: &RunSpec) -> StepAddends {
        let gradient = |rank: usize, microbatch: usize| {
            let phase = 0.3 + 0.7 * rank as f64 + 0.11 * microbatch as f64;
            // Some elements are as small as the smallest numbers of fp16.
            let size = |it: i32| if it % 2 == 0 { 1.0 } else { 1e-6 };
            let element = |it: i32| rounded(size(it) * (f64::from(it) * phase).sin(), spec.dtype);
            Some((0..64).map(element).collect())
        };
        StepAddends::new(spec, Point::Reduced, FP32, gradient).expect("a sum")
    }

    /// Returns the findings for a sum in these dtypes, for every order; rings begin with the last rank.
    fn found(spec: &RunSpec, accum: Dtype, wire: Dtype) -> Vec<Option<Narrower>> {
        let sums = sums(spec);
        let ring = Ring { first: spec.world_size - 1, is_reversed: false };
        let arithmetic = Arithmetic { accum, wire };
        let held = sums.orders(arithmetic).map(|it| sums.computed(arithmetic, it, ring));
        held.map(|held| sums.narrower(spec, &held)).collect()
    }

    #[test]
    fn a_sum_in_dtypes_that_were_asked_for_is_none_that_is_narrower() {
        for ranks in [1, 2, 3] {
            for (accum, wire) in [(FP32, FP32), (FP32, BF16), (BF16, BF16), (FP32, Dtype::Fp16)] {
                let spec = spec(ranks, accum, wire);
                for (accum, wire) in [(accum, wire), (accum, FP32), (FP32, FP32)] {
                    assert!(
                        found(&spec, accum, wire).iter().all(Option::is_none),
                        "{accum} {wire}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_cast_before_the_division_is_no_narrower_sum_over_microbatches() {
        for ranks in [3, 5, 6, 7] {
            let spec = spec(ranks, FP32, BF16);
            let sums = sums(&spec);
            // As in DeepSpeed's `average_tensor`: cast to the dtype of the wire, divided in this dtype, and summed.
            let of_rank = |own: &Vec<Vec<f64>>| -> Vec<f64> {
                let sum = added(&own[..2], FP32).into_iter();
                sum.map(|it| rounded(rounded(it, BF16) / ranks as f64, BF16)).collect()
            };
            let of_ranks: Vec<Vec<f64>> = sums.addends.iter().map(of_rank).collect();
            let two = StepAddends {
                addends: sums.addends.iter().map(|own| own[..2].to_vec()).collect(),
                ..sums
            };
            assert_eq!(two.narrower(&spec, &added(&of_ranks, BF16)), None, "{ranks} ranks");
        }
    }

    #[test]
    fn a_narrower_sum_is_found_behind_a_narrow_wire_that_was_asked_for() {
        for ranks in [2, 3] {
            for (wire, accum_seen, wire_seen, over) in [
                (FP32, BF16, FP32, Over::Microbatches),
                (BF16, BF16, BF16, Over::Microbatches),
                (FP32, FP32, BF16, Over::Ranks),
            ] {
                let narrower = Narrower { over, asked: FP32, seen: BF16 };
                let found = found(&spec(ranks, FP32, wire), accum_seen, wire_seen);
                assert!(found.iter().all(|it| *it == Some(narrower)), "{ranks} ranks: {found:?}");
            }
        }
    }

    #[test]
    fn small_numbers_of_fp16_that_were_rounded_before_a_division_are_no_narrower_sum() {
        let fp16 = Dtype::Fp16;
        let spec = RunSpec { dtype: fp16, grad_accum_dtype: fp16, ..spec(1, FP32, FP32) };
        let whole = |it: i32| rounded(f64::from(it) * 1.7e-7, fp16);
        let of_one = |_: usize, _: usize| Some((1..128).map(|it| whole(it) / 2.0).collect());
        let sums = StepAddends::new(&spec, Point::Reduced, FP32, of_one).expect("a sum");
        // The engine adds up whole numbers and divides the sum.
        let held: Vec<f64> = (1..128).map(|it| rounded(whole(it) * 1.5, fp16)).collect();
        assert_eq!(sums.narrower(&spec, &held), None);
    }

    #[test]
    fn a_few_elements_rounded_to_the_other_side_are_no_narrower_sum() {
        let spec = spec(3, BF16, FP32);
        let sums = sums(&spec);
        let (asked, narrower) = (FP32, Dtype::Fp16);
        for order in sums.orders(Arithmetic { accum: BF16, wire: asked }) {
            let ring = Ring { first: 1, is_reversed: true };
            let in_dtype = |wire| sums.computed(Arithmetic { accum: BF16, wire }, order, ring);
            let (mut held, others) = (in_dtype(asked), in_dtype(narrower));
            let other = (0..held.len()).filter(|it| held[*it] != others[*it]);
            for element in other.take(3).collect::<Vec<_>>() {
                held[element] = others[element];
            }
            assert_eq!(sums.narrower(&spec, &held), None);
        }
    }

    #[test]
    fn noise_of_another_origin_is_no_narrower_sum() {
        let spec = spec(2, FP32, FP32);
        let sums = sums(&spec);
        let order =
            SumOrder { reduces_first: false, division: Division::BeforeCast, returned_in: FP32 };
        let ring = Ring { first: 0, is_reversed: false };
        let exact = sums.computed(Arithmetic { accum: FP32, wire: FP32 }, order, ring);
        for size in [1e-5, 1e-3, 1e-2, 1.0] {
            let noisy =
                exact.iter().zip(0..).map(|(value, it)| value * (1.0 + size * f64::from(it).cos()));
            assert_eq!(sums.narrower(&spec, &noisy.collect::<Vec<_>>()), None, "{size}");
        }
    }
}
