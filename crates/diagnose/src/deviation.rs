//! Deviations of the optimizer's input from the plan, and the patterns that the wrong weights form.
//!
//! A pattern is named by the optimizer's input, which all engines have, with all owners of partitions taken together.
//! The place where a deviation first shows is searched for along the journey of the gradient.

use std::collections::BTreeSet;
use std::fmt;

use zprobe_model::spec::plan::base_name;
use zprobe_model::spec::{Observation, RunSpec, Shape};
use zprobe_model::trace::Point;
use zprobe_report::words::matrix_text;
use zprobe_report::{Contribution, Elements, Possible};

use crate::bounds;
use crate::decode::{Decoded, largest};
use crate::observed::Observed;

/// A pattern of wrong weights in one step.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// The index of the optimizer step.
    pub step: usize,
    /// The ranks whose optimizer consumed the wrong gradient.
    pub owners: Vec<usize>,
    /// The point at which the weights were read.
    pub point: Point,
    /// The names of the parameters with the pattern; `None` for all parameters.
    pub params: Option<Vec<String>>,
    /// The elements with the pattern; empty if all elements of the parameters have it.
    pub elements: Vec<Elements>,
    /// The pattern that the weights form.
    pub pattern: Pattern,
    /// The weights on the first owner, shown as evidence.
    pub example: Contribution,
    /// The first place on the journey at which the deviation shows.
    pub first: JourneyPlace,
}

/// A named shape of wrong weights.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// The boundary microbatch's gradients have weight `W` on their own rank and 0 on all others; the other
    /// microbatches are right.
    BoundaryLeak,
    /// Every gradient has weight `W` on its own rank and 0 on all others.
    NotAveraged,
    /// The gradients of the listed microbatches have weight `W` on their own rank and 0 on all others; the other
    /// microbatches are right.
    PartlyAveraged(Vec<usize>),
    /// Every gradient has weight 1 on its own rank and 0 on all others: the gradients were divided by `W` but not
    /// summed.
    NotSummed,
    /// Every gradient has this weight on the ranks of its own replica and 0 on the ranks of other replicas.
    WithinReplica(f64),
    /// The listed gradients, as (rank, microbatch), are missing, and the others are right.
    Missing(Vec<(usize, usize)>),
    /// The listed gradients, as (rank, microbatch), were counted several times, and the others are right.
    Repeated(Vec<(usize, usize)>),
    /// The listed gradients, as (rank, microbatch), have the world size or the number of microbatches as their
    /// weight, and the others are right.
    PartlyScaled(Vec<(usize, usize)>, f64),
    /// All gradients have the same wrong weight.
    Scaled(f64),
    /// A part of every gradient is missing. Gradients have two parts in the shapes that go through backward in two
    /// places.
    PartLost(GradientPart),
    /// All gradients of one microbatch have the same weight, but microbatches differ. Holds the weight of each
    /// microbatch.
    ByMicrobatch(Vec<f64>),
    /// All gradients of one rank have the same weight, but ranks differ. Holds the weight of each rank.
    ByRank(Vec<f64>),
    /// Gradients of an earlier step were consumed again.
    Leftover,
    /// Gradients of the listed microbatches were consumed here, although they belong to another optimizer.
    OfOthers(Vec<usize>),
    /// Some elements are not as planned, and they are too few to single out one pattern. Holds all patterns that
    /// explain them.
    Ambiguous(Vec<Pattern>),
    /// No weights explain the buffer, or the weights form no known pattern.
    Unexplained,
}

/// One part of a gradient that goes through backward in two places: the first adds twice the gradient, and the second
/// subtracts the gradient once (see [`zprobe_model::spec::Workload`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientPart {
    /// The part that goes through the engine's forward.
    Forward,
    /// The part outside of the engine's forward.
    Beside,
    /// The part of the first of two backwards.
    FirstBackward,
}

impl GradientPart {
    /// The weight of a gradient that lacks its first part.
    const WITHOUT_FIRST: f64 = -1.0;
    /// The weight of a gradient that lacks its second part.
    const WITHOUT_SECOND: f64 = 2.0;

    /// Returns the part whose loss gives gradients of `params` their weight, which `weight` compares with a number.
    /// `None` if another slip leads to the same weight.
    fn lost(
        observed: &Observed<'_>,
        params: Option<&[String]>,
        weight: impl Fn(f64) -> bool,
    ) -> Option<Self> {
        let spec = observed.spec;
        if spec.has_shape(Shape::SeveralBackwards) {
            return weight(Self::WITHOUT_FIRST).then_some(Self::FirstBackward);
        }
        let is_about = |shape: &Shape| {
            spec.has_shape(*shape)
                && params.is_some_and(|it| it.iter().all(|it| shape.param() == Some(base_name(it))))
        };
        let shape =
            [Shape::Tied, Shape::Bypass, Shape::PenaltyBackward].into_iter().find(is_about)?;
        if weight(Self::WITHOUT_FIRST) {
            Some(Self::Forward)
        } else {
            // A gradient that is reduced twice, as a tied one may be, has this weight too.
            let is_second = shape != Shape::Tied && weight(Self::WITHOUT_SECOND);
            is_second.then_some(Self::Beside)
        }
    }
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
    /// Replaces an ambiguous pattern by one of its possible patterns, and the example's weights by weights of that
    /// pattern.
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

impl Pattern {
    /// The number of bits by which one element tells this pattern from others. Two sets of weights that differ in a
    /// single gradient agree in every other element, and groups of gradients agree in every fourth.
    fn bits(&self) -> f64 {
        let (Pattern::Missing(sources)
        | Pattern::Repeated(sources)
        | Pattern::PartlyScaled(sources, _)) = self
        else {
            return 2.0;
        };
        if sources.len() == 1 { 1.0 } else { 2.0 }
    }

    /// True if both patterns are the same slip. Scales are compared with a tolerance, because each sum rounds a scale
    /// a little differently.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Pattern::Scaled(a), Pattern::Scaled(b)) => (a / b - 1.0).abs() < bounds::SAME_SCALE,
            (Pattern::ByMicrobatch(a), Pattern::ByMicrobatch(b))
            | (Pattern::ByRank(a), Pattern::ByRank(b)) => {
                let same = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < bounds::SAME_SCALE;
                a.len() == b.len() && a.iter().zip(b).all(same)
            }
            _ => self == other,
        }
    }
}

/// A place on the journey of a step's gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct JourneyPlace {
    /// The index of the optimizer step.
    pub step: usize,
    /// The microbatch; `None` for points after the accumulation.
    pub microbatch: Option<usize>,
    /// The point at which the buffer was recorded.
    pub point: Point,
    /// The rank that recorded the buffer.
    pub rank: usize,
}

impl fmt::Display for JourneyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.step)?;
        if let Some(microbatch) = self.microbatch {
            write!(f, ", microbatch {microbatch}")?;
        }
        write!(f, ", {} of rank {}", self.point.describe(), self.rank)
    }
}

/// Finds all deviations at the optimizer's input.
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

/// Renames `NotSummed` to `Missing` where a rank was lost. If all gradients of one of two ranks are lost, the other
/// rank's weights look as if gradients were never summed. If they really were never summed, no rank would have
/// gradients of another, and none would be found missing.
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
        .map(|&point| at(decoded, point, step).collect::<Vec<_>>())
        .find(|entries| !entries.is_empty())
        .unwrap_or_default()
}

fn at(decoded: &Decoded, point: Point, step: usize) -> impl Iterator<Item = &Contribution> {
    decoded.contributions.iter().filter(move |c| c.point == point && c.step == step)
}

fn push_new(list: &mut Vec<usize>, value: usize) {
    if !list.contains(&value) {
        list.push(value);
    }
}

/// Returns the patterns of one rank's weights, or a single `Ambiguous` pattern with all possible ones.
fn patterns(observed: &Observed<'_>, decoded: &Decoded, entry: &Contribution) -> Vec<Pattern> {
    if entry.possible.is_empty() {
        return certain_patterns(observed, decoded, entry);
    }
    let mut all: Vec<Pattern> = Vec::new();
    for Possible { weights, leftover } in &entry.possible {
        let (weights, leftover) = (weights.clone(), leftover.clone());
        let one = Contribution { weights, leftover, possible: Vec::new(), ..entry.clone() };
        for pattern in certain_patterns(observed, decoded, &one) {
            if !all.iter().any(|known| known.is_like(&pattern)) {
                all.push(pattern);
            }
        }
    }
    vec![Pattern::Ambiguous(all)]
}

/// Returns the patterns of one rank's weights: the pattern of this step, and `Leftover` for gradients of earlier
/// steps.
fn certain_patterns(
    observed: &Observed<'_>,
    decoded: &Decoded,
    entry: &Contribution,
) -> Vec<Pattern> {
    let mut patterns = Vec::from_iter(pattern(observed, decoded, entry));
    if patterns == [Pattern::Unexplained]
        && let Some(both) = lost_and_own(observed, entry).or_else(|| lost_and_repeated(entry))
    {
        patterns = both.into();
    }
    if patterns == [Pattern::Unexplained] && has_old_ones(observed, entry) {
        return vec![Pattern::Leftover];
    }
    let noise = entry.tolerance.max(bounds::NOISE_BESIDE_DEVIATION * largest_deviation(entry));
    let left = entry.leftover.iter().flatten().any(|weight| weight.abs() > noise);
    if left && !patterns.contains(&Pattern::Unexplained) {
        // A gradient that looks missing was not lost: a gradient of the previous step is in its place.
        patterns.retain(|pattern| !matches!(pattern, Pattern::Missing(_)));
        patterns.push(Pattern::Leftover);
    }
    patterns
}

/// True if gradients of a script's first step are known to remain in all of these parameters. Together with the
/// gradients of later steps, they may be too many to decode from a few elements.
fn has_old_ones(observed: &Observed<'_>, entry: &Contribution) -> bool {
    let left = observed.updates.left.get(&(entry.step, entry.rank));
    let is_left = |param: usize| left.is_some_and(|left| left.iter().any(|it| it.param == param));
    let params = entry.params.iter().flatten().map(|name| observed.model.param_number(name));
    let params: Vec<Option<usize>> = params.collect();
    !params.is_empty() && params.into_iter().all(|param| param.is_some_and(is_left))
}

/// The largest difference between this step's weights and the expected ones. A wrong scale (such as 1/3) is rounded
/// in the narrowest dtype on its way, and the noise of that stays well below [`bounds::NOISE_BESIDE_DEVIATION`] of
/// this difference.
fn largest_deviation(entry: &Contribution) -> f64 {
    let expected = entry.expected.iter().flatten();
    largest(entry.weights.iter().flatten().zip(expected).map(|(weight, e)| (weight - e).abs()))
}

/// Returns the pattern of this step's weights. Only microbatches that use the parameters count; a pattern holds only
/// if all other microbatches have weight 0.
fn pattern(observed: &Observed<'_>, decoded: &Decoded, entry: &Contribution) -> Option<Pattern> {
    let (spec, replicas) = (observed.spec, observed.replicas());
    let world = spec.world_size;
    let boundary = spec.gradient_accumulation_steps - 1;
    let is = |weight: f64, expected: f64| (weight - expected).abs() <= entry.tolerance;
    let used = |rank: usize, m: usize| entry.expected[rank][m] != 0.0;
    let deviation = largest_deviation(entry);
    if entry.residual > entry.tolerance.max(bounds::NOISE_BESIDE_DEVIATION * deviation) {
        return Some(Pattern::Unexplained);
    }
    let (mut gradients, mut of_others) = (Vec::new(), BTreeSet::new());
    for (rank, row) in entry.weights.iter().enumerate() {
        for (m, &weight) in row.iter().enumerate() {
            if used(rank, m) {
                gradients.push((rank, m, weight));
            } else if !is(weight, 0.0) {
                of_others.insert(m);
            }
        }
    }
    let all = |expected: &dyn Fn(usize, usize) -> f64| {
        gradients.iter().all(|&(rank, m, weight)| is(weight, expected(rank, m)))
    };
    if !of_others.is_empty() {
        let is_script = spec.script().is_some();
        let is_known = is_script && !gradients.is_empty() && all(&|_, _| 1.0);
        let of_others = Pattern::OfOthers(of_others.into_iter().collect());
        return Some(if is_known { of_others } else { Pattern::Unexplained });
    }
    let own = |owner: usize, rank: usize| if rank == owner { replicas as f64 } else { 0.0 };
    // Any rank may own the updated parameters, and the owner need not be known.
    let owners =
        if entry.point == Point::Parameters { 0..world } else { entry.rank..entry.rank + 1 };
    if all(&|_, _| 1.0) {
        // The weights are right: the deviation is a residual below the tolerance, or a leftover.
        return None;
    }
    if replicas > 1 && owners.clone().any(|owner| all(&|rank, _| own(owner, rank))) {
        // Where only the boundary microbatch uses the parameters, a leak has the same weights, but follows a
        // reduction that lacks this microbatch.
        let leaked = only_boundary(entry) && reduced_without_boundary(decoded, entry);
        return Some(if leaked { Pattern::BoundaryLeak } else { Pattern::NotAveraged });
    }
    let leaked = |owner| all(&|rank, m| if m == boundary { own(owner, rank) } else { 1.0 });
    if replicas > 1 && owners.clone().any(leaked) {
        return Some(Pattern::BoundaryLeak);
    }
    let alone = |owner: usize| all(&|rank, _| if rank == owner { 1.0 } else { 0.0 });
    if replicas > 1 && owners.clone().any(alone) {
        return Some(Pattern::NotSummed);
    }
    // The weight is that of an average within the replica, of an average over all ranks, or of a sum.
    let within = |owner: usize| {
        let replicas = spec.fsdp2().filter(|it| it.replicas > 1)?.replicas;
        let is_beside = |rank| spec.replica(rank) == spec.replica(owner);
        let weights = [replicas, world, 1].map(|weight| weight as f64).into_iter();
        let mut fitting =
            weights.filter(|weight| all(&|rank, _| if is_beside(rank) { *weight } else { 0.0 }));
        fitting.next()
    };
    if let Some(weight) = owners.clone().find_map(within) {
        return Some(Pattern::WithinReplica(weight));
    }
    // Only whole microbatches count: a single rank's wrong gradient is another slip.
    let microbatch_is = |microbatch: usize, expected: &dyn Fn(usize) -> f64| {
        let mut of_it = gradients.iter().filter(|&&(_, m, _)| m == microbatch);
        of_it.all(|&(rank, _, weight)| is(weight, expected(rank)))
    };
    let unreduced = |owner| -> Option<Vec<usize>> {
        let wrong = (0..=boundary).filter(|&m| !microbatch_is(m, &|_| 1.0));
        wrong.map(|m| microbatch_is(m, &|rank| own(owner, rank)).then_some(m)).collect()
    };
    if let Some(microbatches) = owners.clone().find_map(unreduced) {
        return Some(Pattern::PartlyAveraged(microbatches));
    }
    let sources = |wanted: &dyn Fn(f64) -> bool| {
        let wanted = gradients.iter().filter(|(_, _, weight)| wanted(*weight));
        wanted.map(|&(rank, m, _)| (rank, m)).collect()
    };
    let first = gradients.first().map_or(0.0, |&(_, _, weight)| weight);
    let slack = entry.tolerance.max(bounds::NOISE_BESIDE_DEVIATION * deviation);
    let uniform = gradients.iter().all(|(_, _, weight)| (weight - first).abs() <= slack);
    if uniform
        && let Some(part) =
            GradientPart::lost(observed, entry.params.as_deref(), |it| is(first, it))
    {
        return Some(Pattern::PartLost(part));
    }
    if uniform && !is(first, 0.0) {
        return Some(Pattern::Scaled(first));
    }
    if gradients.iter().all(|&(_, _, weight)| is(weight, 0.0) || is(weight, 1.0)) {
        return Some(Pattern::Missing(sources(&|weight| is(weight, 0.0))));
    }
    let repeated = |weight: f64| weight > 1.5 && is(weight, weight.round());
    if gradients.iter().all(|&(_, _, weight)| is(weight, 1.0) || repeated(weight)) {
        let wrong = sources(&repeated);
        // A gradient is not counted by chance exactly as many times as there are ranks or microbatches.
        let factor = largest(gradients.iter().map(|&(_, _, weight)| weight));
        let all_alike = gradients.iter().all(|&(_, _, w)| is(w, 1.0) || is(w, factor));
        let counts = [world, replicas, spec.gradient_accumulation_steps];
        let is_count = counts.iter().any(|&count| count > 2 && is(factor, count as f64));
        return Some(if all_alike && is_count {
            Pattern::PartlyScaled(wrong, factor)
        } else {
            Pattern::Repeated(wrong)
        });
    }
    // Weights that are the same within each group of gradients and are not 0.
    let by = |count: usize, group: &dyn Fn(usize, usize) -> usize| -> Option<Vec<f64>> {
        let mut weights = vec![None; count];
        for &(rank, m, weight) in &gradients {
            let of_group = weights[group(rank, m)].get_or_insert(weight);
            if (weight - *of_group).abs() > slack || is(weight, 0.0) {
                return None;
            }
        }
        weights.into_iter().collect()
    };
    let by_microbatch = || by(boundary + 1, &|_, m| m).map(Pattern::ByMicrobatch);
    let by_rank = || by(world, &|rank, _| rank).map(Pattern::ByRank);
    by_microbatch().or_else(by_rank).or(Some(Pattern::Unexplained))
}

/// Returns the missing gradients and the microbatches that were not averaged, if both exist: some microbatches are
/// lost on all ranks, and of the others only the rank's own gradients arrived, with the number of replicas as their
/// weight.
fn lost_and_own(observed: &Observed<'_>, entry: &Contribution) -> Option<[Pattern; 2]> {
    let (replicas, world) = (observed.replicas(), observed.spec.world_size);
    let is = |weight: f64, expected: f64| (weight - expected).abs() <= entry.tolerance;
    if replicas < 2 || entry.residual > entry.tolerance {
        return None;
    }
    let owners =
        if entry.point == Point::Parameters { 0..world } else { entry.rank..entry.rank + 1 };
    owners.into_iter().find_map(|owner| {
        let (mut lost, mut kept) = (Vec::new(), Vec::new());
        for (m, &weight) in entry.weights[owner].iter().enumerate() {
            let is_kept = is(weight, replicas as f64);
            let own = |rank: usize| if is_kept && rank == owner { replicas as f64 } else { 0.0 };
            if !(0..world).all(|rank| is(entry.weights[rank][m], own(rank))) {
                return None;
            }
            let used = (0..world).filter(|&rank| entry.expected[rank][m] != 0.0);
            if is_kept {
                kept.push(m);
            } else {
                lost.extend(used.map(|rank| (rank, m)));
            }
        }
        let has_both = !lost.is_empty() && !kept.is_empty();
        has_both.then_some([Pattern::Missing(lost), Pattern::PartlyAveraged(kept)])
    })
}

/// Returns the missing and the repeated gradients, if there are both and every gradient was counted a whole number of
/// times.
fn lost_and_repeated(entry: &Contribution) -> Option<[Pattern; 2]> {
    if entry.residual > entry.tolerance {
        return None;
    }
    let is = |weight: f64, expected: f64| (weight - expected).abs() <= entry.tolerance;
    let (mut lost, mut repeated) = (Vec::new(), Vec::new());
    for (rank, (weights, expected)) in entry.weights.iter().zip(&entry.expected).enumerate() {
        for (m, (&weight, &expected)) in weights.iter().zip(expected).enumerate() {
            match (expected != 0.0, weight.round()) {
                (_, count) if count < 0.0 || !is(weight, count) => return None,
                (true, 0.0) => lost.push((rank, m)),
                (true, count) if count > 1.0 => repeated.push((rank, m)),
                (false, count) if count != 0.0 => return None,
                _ => {}
            }
        }
    }
    let has_both = !lost.is_empty() && !repeated.is_empty();
    has_both.then_some([Pattern::Missing(lost), Pattern::Repeated(repeated)])
}

/// True if only the boundary microbatch uses the parameters.
fn only_boundary(entry: &Contribution) -> bool {
    let others =
        |row: &Vec<f64>| row.split_last().is_some_and(|(_, o)| o.iter().all(|e| *e == 0.0));
    entry.expected.iter().all(others)
}

/// True if the reduction of this rank and step ran before the boundary microbatch's gradient arrived.
fn reduced_without_boundary(decoded: &Decoded, entry: &Contribution) -> bool {
    let ends = |weights: &[Vec<f64>], is: &dyn Fn(f64) -> bool| {
        weights.iter().all(|row| row.last().is_some_and(|weight| is(*weight)))
    };
    at(decoded, Point::Reduced, entry.step)
        .filter(|reduced| reduced.is_of(entry.rank))
        .filter(|reduced| ends(&reduced.expected, &|expected| expected != 0.0))
        .any(|reduced| ends(&reduced.weights, &|weight| weight.abs() <= reduced.tolerance))
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
