//! Gradients that are right but lie at the wrong place.
//!
//! In a coded run the expected value of every element is known, and the signs of the code make it
//! different from place to place: a piece that is not what it should be is looked for everywhere
//! else.

use std::collections::HashMap;

use crate::spec::{LARGEST_WHOLE, Model, Plan, Point};

use super::Case;
use super::bounds;
use super::infinity;
use super::norm::Clip;
use super::observed::Buffer;

/// Number of elements by which a place is looked up.
const HEAD: usize = 16;

/// A piece of what an optimizer consumed that belongs somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The rank that consumed it.
    pub rank: usize,
    /// First element of the flat order where the piece lies.
    pub place: usize,
    /// First element of the flat order where it belongs.
    pub content: usize,
    /// Number of elements in the piece.
    pub elements: usize,
}

impl Displaced {
    /// Distance in elements from where the piece lies to where it belongs; positive if that is
    /// further on.
    pub fn distance(&self) -> i64 {
        self.content as i64 - self.place as i64
    }
}

/// The displaced pieces in what the optimizers consumed in `step`.
pub fn find(case: &Case<'_>, step: usize) -> Vec<Displaced> {
    if case.observed.spec.model != Model::Coded || case.plan.numel() > LARGEST_WHOLE {
        return Vec::new();
    }
    let places = Places::new(expected(case, step));
    let mut displaced = Vec::new();
    for (buffer, values) in consumed(case, step) {
        let shortest = places.shortest(values.len());
        for piece in infinity::parts(&case.observed, &case.plan, buffer) {
            let values = &values[piece.start..][..piece.flat.len()];
            let mut at = 0;
            while values.len() - at >= shortest {
                let place = piece.flat.start + at;
                let right = alike(&values[at..], &places.expected[place..]);
                if right >= shortest {
                    at += right;
                } else if let Some((content, elements)) = places.longest(&values[at..], shortest) {
                    displaced.push(Displaced { rank: buffer.rank, place, content, elements });
                    at += elements;
                } else {
                    at += 1;
                }
            }
        }
    }
    displaced
}

/// True if these pieces are displaced in the same way in what the optimizers consumed in `step`.
/// It takes no search.
pub fn is_again(case: &Case<'_>, step: usize, displaced: &[Displaced]) -> bool {
    let expected = expected(case, step);
    let consumed: Vec<_> = consumed(case, step).collect();
    let is_there = |piece: &Displaced| {
        let mut of_rank = consumed.iter().filter(|(buffer, _)| buffer.rank == piece.rank);
        of_rank.any(|(buffer, values)| {
            infinity::parts(&case.observed, &case.plan, buffer).into_iter().any(|part| {
                let held = &values[part.start..][..part.flat.len()];
                let held = piece.place.checked_sub(part.flat.start).and_then(|at| held.get(at..));
                held.is_some_and(|held| alike(held, &expected[piece.content..]) >= piece.elements)
            })
        })
    };
    displaced.iter().all(is_there)
}

/// Buffers that the optimizers consumed in `step` and their values, where these were not clipped.
fn consumed<'a>(
    case: &'a Case<'_>,
    step: usize,
) -> impl Iterator<Item = (&'a Buffer<'a>, Vec<f64>)> {
    case.observed.at(Point::OptimizerInput, step).filter_map(move |buffer| {
        let clip = Clip::of(&case.observed, &case.norms, step, buffer.rank);
        let values = buffer.payload.values().ok()?;
        (clip == Clip::No).then_some((buffer, values))
    })
}

/// Expected values of all elements, to be looked up by content.
struct Places {
    expected: Vec<f64>,
    by_head: HashMap<Vec<i64>, Vec<usize>>,
    /// Probability that two elements are alike.
    collision: f64,
}

impl Places {
    fn new(expected: Vec<f64>) -> Self {
        let mut by_head: HashMap<Vec<i64>, Vec<usize>> = HashMap::new();
        for (start, head) in expected.windows(HEAD).enumerate() {
            by_head.entry(rounded(head)).or_default().push(start);
        }
        let mut counts: HashMap<i64, usize> = HashMap::new();
        for value in rounded(&expected) {
            *counts.entry(value).or_default() += 1;
        }
        let share = |count: &usize| *count as f64 / expected.len() as f64;
        let collision = counts.values().map(|count| share(count).powi(2)).sum();
        Self { expected, by_head, collision }
    }

    /// The shortest length at which a piece is not found by chance, with `tried` elements at every
    /// place: but for one search in 2¹⁶ ([`bounds::CHANCE_BITS`]).
    fn shortest(&self, tried: usize) -> usize {
        let pairs = self.expected.len() as f64 * tried as f64;
        let bits = -self.collision.log2();
        HEAD.max(((bounds::CHANCE_BITS + pairs.log2()) / bits).ceil() as usize)
    }

    /// Place at which the beginning of `values` is found, and the number of elements that agree
    /// there; none if there is no such place, or if all of the beginning is the same value, which
    /// means nothing.
    fn longest(&self, values: &[f64], shortest: usize) -> Option<(usize, usize)> {
        let head = values.get(..HEAD)?;
        if head.iter().all(|value| value == &head[0]) {
            return None;
        }
        let starts = self.by_head.get(&rounded(head))?;
        let found = starts.iter().map(|&start| (start, alike(values, &self.expected[start..])));
        found.filter(|(_, elements)| *elements >= shortest).max_by_key(|(_, elements)| *elements)
    }
}

/// The integers closest to some values.
fn rounded(values: &[f64]) -> Vec<i64> {
    values.iter().map(|value| value.round() as i64).collect()
}

/// Values that all elements of the flat order should hold when the optimizer reads them.
fn expected(case: &Case<'_>, step: usize) -> Vec<f64> {
    let (spec, plan) = (case.observed.spec, &case.plan);
    let code = Plan::code(spec);
    let boundary = spec.gradient_accumulation_steps - 1;
    let of = |param: usize| {
        let usage = plan.usage(param);
        let weights = plan.expected(usage, Point::OptimizerInput, step, boundary, 0);
        code.encode(&weights, plan.params()[param].range())
    };
    (0..plan.params().len()).flat_map(of).collect()
}

/// Number of elements that are alike from the beginning.
fn alike(values: &[f64], expected: &[f64]) -> usize {
    values
        .iter()
        .zip(expected)
        .take_while(|(value, e)| (**value - **e).abs() < bounds::SAME_ELEMENT)
        .count()
}
