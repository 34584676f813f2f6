//! The recognition of patterns in the weights of one rank.

use std::collections::BTreeSet;

use zprobe_model::trace::Point;
use zprobe_report::{Contribution, Possible};

use super::pattern::{GradientPart, Pattern};
use crate::bounds;
use crate::decode::{Decoded, largest};
use crate::observed::Observed;

/// Returns the patterns of one rank's weights, or a single `Ambiguous` pattern with all possible ones.
pub fn patterns(observed: &Observed<'_>, decoded: &Decoded, entry: &Contribution) -> Vec<Pattern> {
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
pub fn certain_patterns(
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
/// gradients of later steps, these gradients may be too many to decode from a few elements.
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
    // The weight is that of an average within the replica, of an average over all ranks, or of a sum.
    let within = |owner: usize| {
        let replicas = Some(spec.replicas()).filter(|it| *it > 1)?;
        let is_beside = |rank| spec.replica(rank) == spec.replica(owner);
        let wrong: Vec<usize> = (0..=boundary).filter(|&m| !microbatch_is(m, &|_| 1.0)).collect();
        let is_own = |weight: f64| {
            let own = |rank: usize| if is_beside(rank) { weight } else { 0.0 };
            wrong.iter().all(|&m| microbatch_is(m, &own))
        };
        let weights = [replicas, world, 1].map(|weight| weight as f64);
        let weight = weights.into_iter().find(|it| is_own(*it))?;
        Some(Pattern::WithinReplica(weight, wrong))
    };
    if let Some(within) = owners.clone().find_map(within) {
        return Some(within);
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

/// Returns the missing and the repeated gradients, if both exist and every gradient was counted a whole number of
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
pub fn only_boundary(entry: &Contribution) -> bool {
    let others =
        |row: &Vec<f64>| row.split_last().is_some_and(|(_, o)| o.iter().all(|e| *e == 0.0));
    entry.expected.iter().all(others)
}

/// True if the reduction of this rank and step ran before the boundary microbatch's gradient arrived.
fn reduced_without_boundary(decoded: &Decoded, entry: &Contribution) -> bool {
    let ends = |weights: &[Vec<f64>], is: &dyn Fn(f64) -> bool| {
        weights.iter().all(|row| row.last().is_some_and(|weight| is(*weight)))
    };
    decoded
        .at(Point::Reduced, entry.step)
        .filter(|reduced| reduced.is_of(entry.rank))
        .filter(|reduced| ends(&reduced.expected, &|expected| expected != 0.0))
        .any(|reduced| ends(&reduced.weights, &|weight| weight.abs() <= reduced.tolerance))
}
