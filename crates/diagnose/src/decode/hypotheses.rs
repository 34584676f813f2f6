//! Hypotheses about a piece that is too short to be decoded: each known mistake (*slip*) multiplies the planned
//! weights by certain factors.

use zprobe_model::spec::RunSpec;
use zprobe_model::spec::code::Code;

use super::weights::ColumnWeights;
use crate::placement::Fragment;

/// A known mistake of an engine, as the factors by which it multiplies the planned weights.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightSlip {
    /// Different factors for each microbatch, on the rank that holds the buffer and on all other ranks.
    Microbatches {
        /// The factors of the other ranks' gradients, by microbatch.
        others: Vec<f64>,
        /// The factors of the holder's own gradients, by microbatch.
        own: Vec<f64>,
    },
    /// A factor of a single gradient; all others are unchanged.
    One {
        /// The rank whose gradient has the factor.
        rank: usize,
        /// The microbatch whose gradient has the factor.
        microbatch: usize,
        /// The factor of this gradient.
        factor: f64,
    },
}

/// The largest number of microbatches per step for which mistakes about single microbatches are tried on short pieces.
const MOST_PLACES: usize = 1 << 10;

/// The step and the rank of a buffer, by which a rank's own gradients are told from those of other ranks.
#[derive(Clone, Copy)]
pub struct Owner {
    /// The index of the optimizer step.
    pub step: usize,
    /// The rank that holds the buffer.
    pub rank: usize,
}

impl WeightSlip {
    /// Returns the planned weights on `rank`, changed by the mistake.
    pub fn weights(&self, spec: &RunSpec, planned: &[f64], rank: usize) -> Vec<f64> {
        planned.iter().enumerate().map(|(k, weight)| weight * self.factor(spec, rank, k)).collect()
    }

    /// True if the mistake changes any of the planned weights on `rank`.
    pub fn changes(&self, spec: &RunSpec, planned: &[f64], rank: usize) -> bool {
        let changed = |k: usize| planned[k] != 0.0 && self.factor(spec, rank, k) != 1.0;
        match self {
            // Only the place of the slip is checked, because a run has as many such slips as gradients.
            WeightSlip::One { rank, microbatch, .. } => {
                (0..spec.code_steps()).any(|step| changed(spec.column(step, *rank, *microbatch)))
            }
            WeightSlip::Microbatches { .. } => (0..planned.len()).any(changed),
        }
    }

    /// The factor by which the mistake multiplies a column's weight in a buffer of `owner`.
    fn factor(&self, spec: &RunSpec, owner: usize, column: usize) -> f64 {
        let ga = spec.gradient_accumulation_steps;
        let (source, m) = (column / ga % spec.world_size, column % ga);
        match self {
            WeightSlip::Microbatches { own, .. } if source == owner => own[m],
            WeightSlip::Microbatches { others, .. } => others[m],
            WeightSlip::One { rank, microbatch, factor } if (*rank, *microbatch) == (source, m) => {
                *factor
            }
            WeightSlip::One { .. } => 1.0,
        }
    }

    /// True if the mistake explains a piece, up to `tolerance` in each element. The changed weights are not computed,
    /// because that is slow: sums with the planned weights are shared by all ranks, and single gradients are cheap.
    pub fn fits(
        &self,
        spec: &RunSpec,
        code: &Code,
        planned: &ColumnWeights,
        owner: Owner,
        (piece, values): (&Fragment, &[f64]),
        tolerance: f64,
    ) -> bool {
        let gradient = |rank: usize, m: usize, element: usize| {
            let column = spec.column(owner.step, rank, m);
            planned.columns[column] * f64::from(code.value(column, element))
        };
        let predicted = |element: usize| match self {
            WeightSlip::One { rank, microbatch, factor } => {
                planned.sum(code).value(element)
                    + (factor - 1.0) * gradient(*rank, *microbatch, element)
            }
            WeightSlip::Microbatches { others, own } => {
                let sums = planned.by_microbatch(code, spec.gradient_accumulation_steps);
                let terms = sums.iter().zip(others.iter().zip(own)).enumerate();
                terms
                    .map(|(m, (sum, (others, own)))| {
                        others * sum.value(element)
                            + (own - others) * gradient(owner.rank, m, element)
                    })
                    .sum()
            }
        };
        let mut elements = piece.flat.clone().zip(&values[piece.start..]);
        elements.all(|(element, value)| (value - predicted(element)).abs() <= tolerance)
    }
}

/// Returns all known mistakes that a run of this specification may have.
pub fn slips(spec: &RunSpec) -> Vec<WeightSlip> {
    let (world, ga) = (spec.world_size, spec.gradient_accumulation_steps);
    let world_size = world as f64;
    let microbatches = |others: &dyn Fn(usize) -> f64, own: &dyn Fn(usize) -> f64| {
        let by_microbatch = |factor: &dyn Fn(usize) -> f64| (0..ga).map(factor).collect();
        WeightSlip::Microbatches { others: by_microbatch(others), own: by_microbatch(own) }
    };
    let alike = |factor: &dyn Fn(usize) -> f64| microbatches(factor, factor);
    let mut made = Vec::new();
    // A slip has one factor for each microbatch of a step. With more microbatches than any training uses, the slips
    // would take too much memory.
    let places = if ga <= MOST_PLACES { ga } else { 0 };
    // Gradients that were not averaged: all from some microbatch on (which may be the first), or those of a single
    // microbatch.
    for first in 0..places {
        let not = |is: &dyn Fn(usize) -> bool| {
            microbatches(&|m| if is(m) { 0.0 } else { 1.0 }, &|m| {
                if is(m) { world_size } else { 1.0 }
            })
        };
        made.push(not(&|m| m >= first));
        made.push(not(&|m| m == first));
    }
    // Gradients that were divided by the number of ranks but not summed, and gradients of only the last microbatch.
    made.push(microbatches(&|_| 0.0, &|_| 1.0));
    made.push(alike(&|m| if m + 1 == ga { 1.0 } else { 0.0 }));
    for factor in [world, ga, 2].map(|number| number as f64) {
        made.extend([alike(&|_| factor), alike(&|_| 1.0 / factor)]);
    }
    for changed in [0.0, 2.0] {
        for microbatch in 0..places {
            made.push(alike(&|m| if m == microbatch { changed } else { 1.0 }));
            made.extend((0..world).map(|rank| WeightSlip::One {
                rank,
                microbatch,
                factor: changed,
            }));
        }
    }
    made
}
