//! What a piece that is too short to decode could hold: the slips that have a name.

use crate::spec::RunSpec;

/// Weights that each named slip would make of `planned` on `rank`, without those that it leaves as
/// they are, and without repetitions.
pub(super) fn hypotheses(spec: &RunSpec, planned: &[f64], rank: usize) -> Vec<Vec<f64>> {
    let (world, ga) = (spec.world_size, spec.gradient_accumulation_steps);
    let own = |source: usize| if source == rank { world as f64 } else { 0.0 };
    // Each weight times a factor that depends on source rank and microbatch.
    let times = |factor: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
        let of = |k: usize| factor(k / ga % world, k % ga);
        planned.iter().enumerate().map(|(k, weight)| weight * of(k)).collect()
    };
    let mut made = Vec::new();
    // Not averaged: from some microbatch on, which may be the first, and one alone.
    for first in 0..ga {
        made.push(times(&|source, m| if m >= first { own(source) } else { 1.0 }));
        made.push(times(&|source, m| if m == first { own(source) } else { 1.0 }));
    }
    for factor in [world, ga, 2].map(|number| number as f64) {
        made.extend([times(&|_, _| factor), times(&|_, _| 1.0 / factor)]);
    }
    for changed in [0.0, 2.0] {
        for microbatch in 0..ga {
            made.push(times(&|_, m| if m == microbatch { changed } else { 1.0 }));
            for rank in 0..world {
                let here = |source, m| (source, m) == (rank, microbatch);
                made.push(times(&|source, m| if here(source, m) { changed } else { 1.0 }));
            }
        }
    }
    made.retain(|weights| weights != planned);
    made.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    made.dedup();
    made
}
