//! Deviations of the optimizer's input from the plan, and the patterns that the wrong weights form.
//!
//! A pattern is named by the optimizer's input, which all engines have, with all owners of partitions taken together.
//! The place where a deviation first shows is searched for on the gradient's way from backward to the optimizer.

mod pattern;
mod recognise;

use zprobe_model::spec::{Observation, RunSpec};
use zprobe_model::trace::Point;
use zprobe_report::words::matrix_text;
use zprobe_report::{Contribution, Elements, Possible};

use self::recognise::{certain_patterns, only_boundary, patterns};
use crate::bounds;
use crate::decode::Decoded;
use crate::observed::Observed;

pub use self::pattern::{GradientPart, JourneyPlace, Pattern};

/// Wrong weights in one step, and the pattern that they form.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// The index of the optimizer step.
    pub step: usize,
    /// The ranks whose optimizer consumed the wrong gradient.
    pub owners: Vec<usize>,
    /// The point at which the weights were read.
    pub point: Point,
    /// The names of the parameters with the wrong weights; `None` for all parameters.
    pub params: Option<Vec<String>>,
    /// The elements with the wrong weights; empty if all elements of the parameters have wrong weights.
    pub elements: Vec<Elements>,
    /// The pattern that the weights form.
    pub pattern: Pattern,
    /// The weights on the first owner, shown as evidence.
    pub example: Contribution,
    /// The first place on the gradient's way to the optimizer at which the deviation shows.
    pub first: JourneyPlace,
}

impl Deviation {
    /// Describes the evidence of the deviation, one fact per line.
    pub fn facts(&self) -> impl Iterator<Item = String> {
        let Contribution { point, step, rank, weights, possible, residual, tolerance, .. } =
            &self.example;
        let place = format!("the {} of step {step} on rank {rank}", point.describe());
        let weights = match &self.pattern {
            Pattern::Ambiguous(_) => format!("{} sets of weights explain {place}", possible.len()),
            Pattern::Unexplained if residual > tolerance => format!("no weights explain {place}"),
            _ => format!("weights in {place}: {}", matrix_text(weights)),
        };
        [weights, format!("first departure from the plan: {}", self.first)].into_iter()
    }
}

impl Deviation {
    /// Replaces the ambiguous pattern by `pattern`, which is one of its possible patterns, and the weights of the
    /// example by weights of that pattern.
    fn settle_on(&mut self, observed: &Observed<'_>, decoded: &Decoded, pattern: Pattern) {
        let possible = std::mem::take(&mut self.example.possible);
        let has_pattern = |example: &Contribution| {
            certain_patterns(observed, decoded, example).iter().any(|it| it.is_like(&pattern))
        };
        let settled = possible
            .into_iter()
            .map(|Possible { weights, leftover }| Contribution {
                weights,
                leftover,
                ..self.example.clone()
            })
            .find(has_pattern);
        self.example = settled.unwrap_or_else(|| self.example.clone());
        self.pattern = pattern;
    }
}

/// Finds all deviations of the optimizer's input from the plan.
pub fn find(observed: &Observed<'_>, decoded: &Decoded) -> Vec<Deviation> {
    let spec = observed.spec;
    let mut found: Vec<Deviation> = Vec::new();
    for step in spec.recorded_steps() {
        for entry in last_word(spec, decoded, step).into_iter().filter(|entry| !entry.as_planned) {
            for pattern in patterns(observed, decoded, entry) {
                let known = found.iter_mut().find(|deviation| {
                    let same = deviation.step == step && deviation.params == entry.params;
                    same && deviation.elements == entry.elements
                        && deviation.pattern.is_like(&pattern)
                });
                match known {
                    Some(deviation) => {
                        for rank in entry.ranks() {
                            push_new(&mut deviation.owners, rank);
                        }
                    }
                    None => found.push(Deviation {
                        step,
                        owners: entry.ranks().collect(),
                        point: entry.point,
                        params: entry.params.clone(),
                        elements: entry.elements.clone(),
                        pattern,
                        example: entry.clone(),
                        first: first_departure(decoded, step, entry),
                    }),
                }
            }
        }
    }
    settle(observed, decoded, &mut found);
    name_ambiguous_leaks(&mut found);
    name_lost_ranks(&mut found);
    found
}

/// Replaces ambiguous patterns where one pattern is certain. Either the pattern occurs elsewhere in the run with
/// certainty, or it is the only one that explains all ambiguous elements and they are enough to single it out.
fn settle(observed: &Observed<'_>, decoded: &Decoded, found: &mut [Deviation]) {
    let is_ambiguous = |it: &&Deviation| matches!(it.pattern, Pattern::Ambiguous(_));
    let certain: Vec<Pattern> =
        found.iter().filter(|it| !is_ambiguous(it)).map(|it| it.pattern.clone()).collect();
    let mut common: Option<Vec<Pattern>> = None;
    let mut elements = 0;
    for deviation in found.iter_mut() {
        let Pattern::Ambiguous(patterns) = &deviation.pattern else { continue };
        let known = |pattern: &&Pattern| certain.iter().any(|it| it.is_like(pattern));
        if let Some(pattern) = patterns.iter().find(known).cloned() {
            deviation.settle_on(observed, decoded, pattern);
            continue;
        }
        let count: usize = deviation.elements.iter().map(|it| it.end - it.first).sum();
        elements += count * deviation.owners.len().max(1);
        match &mut common {
            Some(common) => common.retain(|it| patterns.iter().any(|other| it.is_like(other))),
            None => common = Some(patterns.clone()),
        }
    }
    let Some(common) = common.filter(|common| !common.is_empty()) else { return };
    for deviation in found.iter_mut().filter(|it| is_ambiguous(&&**it)) {
        match &common[..] {
            [only] if elements as f64 * only.bits() >= bounds::DETERMINED_BITS => {
                deviation.settle_on(observed, decoded, only.clone());
            }
            _ => deviation.pattern = Pattern::Ambiguous(common.clone()),
        }
    }
}

/// Renames `NotSummed` to `Missing` where a rank was lost. If one of two ranks loses all its gradients, the other
/// rank's weights look as if gradients were never summed. A deviation with missing gradients tells the cases apart:
/// without a sum, every rank would have all its own gradients.
fn name_lost_ranks(found: &mut [Deviation]) {
    let is_missing = |deviation: &Deviation| matches!(deviation.pattern, Pattern::Missing(_));
    let is_update = |deviation: &Deviation| deviation.point == Point::Parameters;
    let lost = found.iter().any(is_missing);
    for deviation in found.iter_mut().filter(|it| it.pattern == Pattern::NotSummed) {
        if lost || is_update(deviation) {
            deviation.pattern = Pattern::Missing(missing(&deviation.example));
        }
    }
}

/// Lists the gradients, as (rank, microbatch), that are expected but have weight 0.
pub fn missing(entry: &Contribution) -> Vec<(usize, usize)> {
    let rows = entry.weights.iter().zip(&entry.expected).enumerate();
    rows.flat_map(|(rank, (weights, expected))| {
        let pairs = weights.iter().zip(expected).enumerate();
        let gone = |&(_, (weight, e)): &(usize, (&f64, &f64))| {
            *e != 0.0 && weight.abs() <= entry.tolerance
        };
        pairs.filter(gone).map(move |(m, _)| (rank, m)).collect::<Vec<_>>()
    })
    .collect()
}

/// Renames `NotAveraged` to `BoundaryLeak` where both look the same: in a parameter that only the boundary microbatch
/// uses. If the boundary microbatch leaked in other parameters, it leaked in this parameter too.
fn name_ambiguous_leaks(found: &mut [Deviation]) {
    if found.iter().any(|deviation| deviation.pattern == Pattern::BoundaryLeak) {
        for deviation in found {
            if deviation.pattern == Pattern::NotAveraged && only_boundary(&deviation.example) {
                deviation.pattern = Pattern::BoundaryLeak;
            }
        }
    }
}

/// Returns the contributions at the optimizer's input of a step, or at the closest recorded point before it.
fn last_word<'a>(spec: &RunSpec, decoded: &'a Decoded, step: usize) -> Vec<&'a Contribution> {
    let points: &[Point] = match spec.observe {
        Observation::Full => &[Point::OptimizerInput, Point::BeforeStep, Point::Reduced],
        Observation::Outcome => &[Point::Parameters],
    };
    points
        .iter()
        .map(|&point| decoded.at(point, step).collect::<Vec<_>>())
        .find(|entries| !entries.is_empty())
        .unwrap_or_default()
}

fn push_new(list: &mut Vec<usize>, value: usize) {
    if !list.contains(&value) {
        list.push(value);
    }
}

/// Returns the first buffer of the step, in recording order, that is not as planned. Buffers of the entry's own rank
/// come first; otherwise the entry itself counts.
fn first_departure(decoded: &Decoded, step: usize, entry: &Contribution) -> JourneyPlace {
    let departed = |c: &&Contribution| c.step == step && !c.as_planned;
    let first = decoded
        .contributions
        .iter()
        .filter(departed)
        .find(|c| c.is_of(entry.rank))
        .unwrap_or(entry);
    JourneyPlace { step, microbatch: first.microbatch, point: first.point, rank: entry.rank }
}
