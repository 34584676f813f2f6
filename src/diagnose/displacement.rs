//! Gradients that are right but lie at the wrong place.
//!
//! What the plan expects in an element of a coded run is known for all of them, and the signs of the
//! code make it different from place to place: a piece that is not what it should be is looked for
//! everywhere else.

use crate::spec::{Model, Plan, Point};

use super::Case;
use super::infinity;
use super::norm::Clip;

/// The shortest piece that is recognised: by chance so many elements are alike in one of 2¹⁶ places
/// at most.
const SHORTEST: usize = 16;

/// A piece of what an optimizer consumed that belongs somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The rank that consumed it.
    pub rank: usize,
    /// The first element of the flat order that it was taken for.
    pub place: usize,
    /// The first one that it really is.
    pub content: usize,
    /// Its length.
    pub elements: usize,
}

impl Displaced {
    /// How many elements further on it belongs.
    pub fn distance(&self) -> i64 {
        self.content as i64 - self.place as i64
    }
}

/// The displaced pieces in what the optimizers consumed in `step`.
pub fn find(case: &Case<'_>, step: usize) -> Vec<Displaced> {
    let spec = case.observed.spec;
    if spec.model != Model::Coded {
        return Vec::new();
    }
    let expected = expected(case, step);
    let mut displaced = Vec::new();
    for buffer in case.observed.at(Point::OptimizerInput, step) {
        let clip = Clip::of(&case.observed, &case.norms, step, buffer.rank);
        let (Clip::No, Ok(values)) = (clip, buffer.payload.values()) else { continue };
        for piece in infinity::parts(&case.observed, &case.plan, buffer) {
            let values = &values[piece.start..][..piece.flat.len()];
            let mut at = 0;
            while values.len() - at >= SHORTEST {
                let rest = &values[at..];
                let place = piece.flat.start + at;
                if alike(rest, &expected[place..]) >= SHORTEST {
                    at += alike(rest, &expected[place..]);
                    continue;
                }
                let found = longest(rest, &expected);
                let Some((content, elements)) = found else {
                    at += 1;
                    continue;
                };
                displaced.push(Displaced { rank: buffer.rank, place, content, elements });
                at += elements;
            }
        }
    }
    displaced
}

/// What every element of the flat order should hold when the optimizer reads it.
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

/// Where in `expected` the beginning of `values` is found, and how much of it; none if nowhere, or
/// if it means nothing because all of it is the same.
fn longest(values: &[f64], expected: &[f64]) -> Option<(usize, usize)> {
    let head = values.get(..SHORTEST)?;
    if head.iter().all(|value| value == &head[0]) {
        return None;
    }
    (0..expected.len())
        .map(|start| (start, alike(values, &expected[start..])))
        .filter(|(_, elements)| *elements >= SHORTEST)
        .max_by_key(|(_, elements)| *elements)
}

/// How many elements are alike from the beginning.
fn alike(values: &[f64], expected: &[f64]) -> usize {
    values.iter().zip(expected).take_while(|(value, e)| (**value - **e).abs() < 0.25).count()
}
