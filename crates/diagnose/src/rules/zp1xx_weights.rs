//! ZP1xx: patterns of wrong weights in the optimizers' input.

use super::zp111_loss_scaled;
use crate::bounds;
use crate::case::Case;
use crate::deviation::{Deviation, GradientPart, Pattern, missing};
use crate::norm::Clipping;
use crate::rule::{Merge, Rule, Sighting};
use crate::scope::{Extent, Scope};
use crate::wording::{nothing_arrived, sources_text};
use zprobe_model::spec::Shape;
use zprobe_model::spec::plan::base_name;
use zprobe_model::trace::Point;
use zprobe_report::words::{abridged, counted, matrix_text, multiple_text, weight_text};
use zprobe_report::{Contribution, Finding, RuleCode};

/// The rules of this family, each with its name, its page, and the rules that explain its findings.
pub(super) const RULES: [Rule; 7] = [
    of("ZP101", "boundary-leak", include_str!("../../docs/ZP101.md"), &[]),
    of(
        "ZP102",
        "microbatch-missing",
        include_str!("../../docs/ZP102.md"),
        &RuleCode::all(["ZP110", "ZP201", "ZP401", "ZP402", "ZP605", "ZP701", "ZP801", "ZP802"]),
    ),
    of(
        "ZP103",
        "microbatch-repeated",
        include_str!("../../docs/ZP103.md"),
        &RuleCode::all(["ZP106", "ZP802"]),
    ),
    of(
        "ZP104",
        "not-averaged",
        include_str!("../../docs/ZP104.md"),
        &RuleCode::all(["ZP110", "ZP201", "ZP401", "ZP402", "ZP801", "ZP802"]),
    ),
    of(
        "ZP105",
        "wrongly-scaled",
        include_str!("../../docs/ZP105.md"),
        &RuleCode::all(["ZP110", "ZP202", "ZP401", "ZP402", "ZP605", "ZP606", "ZP607", "ZP802"]),
    ),
    of(
        "ZP106",
        "leftover-gradient",
        include_str!("../../docs/ZP106.md"),
        &RuleCode::all(["ZP110", "ZP402", "ZP606", "ZP701"]),
    ),
    of(
        "ZP107",
        "unexplained-gradient",
        include_str!("../../docs/ZP107.md"),
        &RuleCode::all([
            "ZP106", "ZP110", "ZP201", "ZP401", "ZP402", "ZP501", "ZP602", "ZP605", "ZP607",
            "ZP801", "ZP802",
        ]),
    ),
];

const fn of(
    code: &str,
    name: &'static str,
    doc: &'static str,
    explained_by: &'static [RuleCode],
) -> Rule {
    let code = RuleCode::new(code);
    Rule { code, name, crash: false, is_handed_on: false, explained_by, doc, check }
}

/// Returns the code of the rule that a pattern belongs to.
fn code(pattern: &Pattern) -> RuleCode {
    RuleCode::new(match pattern {
        Pattern::BoundaryLeak => "ZP101",
        Pattern::Missing(_) | Pattern::PartLost(_) => "ZP102",
        Pattern::Repeated(_) => "ZP103",
        Pattern::NotAveraged
        | Pattern::PartlyAveraged(_)
        | Pattern::NotSummed
        | Pattern::WithinReplica(..) => "ZP104",
        Pattern::PartlyScaled(..)
        | Pattern::Scaled(_)
        | Pattern::ByMicrobatch(_)
        | Pattern::ByRank(_) => "ZP105",
        Pattern::Leftover | Pattern::OfOthers(_) => "ZP106",
        Pattern::Ambiguous(_) | Pattern::Unexplained => "ZP107",
    })
}

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let of_rule = case.deviations.iter().filter(|it| code(&it.pattern) == rule.code);
    let of_rule = of_rule.filter(|it| !zp111_loss_scaled::is_right_for(case, it));
    let mut sightings: Vec<Sighting> =
        of_rule.map(|deviation| sighting(case, rule, deviation)).collect();
    if rule.code == code(&Pattern::Leftover) {
        sightings.extend(left_of_the_first_step(case, rule));
    }
    sightings
}

/// Reports gradients of a script's first step that later steps consumed. They are addresses and not codes.
fn left_of_the_first_step(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let left = &case.observed.updates.left;
    let (&(step, _), _) = left.iter().next()?;
    let mut params: Vec<usize> =
        left.values().flat_map(|params| params.iter().map(|it| it.param)).collect();
    params.sort_unstable();
    params.dedup();
    let most = left.values().flat_map(|params| params.iter().map(|it| it.weight));
    let weight =
        weight_text(most.fold(0.0, |most: f64, it| if it.abs() > most.abs() { it } else { most }));
    let message = "gradients of an earlier step reached the optimizer again".to_owned();
    let evidence = vec![format!(
        "gradients of step 0 have weight {weight} in the optimizers' input of step {step}: they were not cleared"
    )];
    let all = params.len() == case.observed.model.params.iter().filter(|it| it.trainable).count();
    let params = if all { Extent::All } else { params.into_iter().collect() };
    let scope = Scope { steps: [step].into_iter().collect(), params, ..Scope::default() };
    let finding = Finding { evidence, ..rule.finding(message) };
    Some(Sighting { finding, scope, merge: Merge::Pattern(Pattern::Leftover) })
}

fn sighting(case: &Case<'_>, rule: &Rule, deviation: &Deviation) -> Sighting {
    let (message, facts) = words(case, deviation);
    let finding =
        Finding { evidence: deviation.facts().chain(facts).collect(), ..rule.finding(message) };
    // Parameters that lost all gradients differ only in the microbatches that use them.
    let merge = if has_lost_all(deviation) {
        Merge::All
    } else {
        Merge::Pattern(deviation.pattern.clone())
    };
    Sighting { finding, scope: scope(case, deviation), merge }
}

/// True if none of the due gradients arrived.
fn has_lost_all(deviation: &Deviation) -> bool {
    let due = deviation.example.expected.iter().flatten().filter(|expected| **expected != 0.0);
    matches!(&deviation.pattern, Pattern::Missing(sources) if sources.len() == due.count())
}

/// Returns the scope of a deviation; its gradients are those that the pattern names.
pub(super) fn scope(case: &Case<'_>, deviation: &Deviation) -> Scope {
    let spec = case.observed.spec;
    let of_every_rank = |microbatches: &[usize]| -> Extent<(usize, usize)> {
        let ranks = 0..spec.world_size;
        ranks.flat_map(|rank| microbatches.iter().map(move |&m| (rank, m))).collect()
    };
    let gradients = match &deviation.pattern {
        Pattern::BoundaryLeak => of_every_rank(&[spec.gradient_accumulation_steps - 1]),
        Pattern::PartlyAveraged(microbatches) | Pattern::WithinReplica(_, microbatches) => {
            of_every_rank(microbatches)
        }
        Pattern::Missing(sources)
        | Pattern::Repeated(sources)
        | Pattern::PartlyScaled(sources, _) => sources.iter().copied().collect(),
        _ => Extent::All,
    };
    let numbers = |names: &Vec<String>| -> Option<Extent<usize>> {
        names.iter().map(|name| case.observed.model.param_number(name)).collect()
    };
    let params = deviation.params.as_ref().and_then(numbers).unwrap_or_default();
    let runs = deviation.elements.iter();
    let runs: Vec<(usize, [usize; 2])> = runs
        .filter_map(|it| Some((case.observed.model.param_number(&it.param)?, [it.first, it.end])))
        .collect();
    let elements = if runs.is_empty() { Extent::All } else { runs.into_iter().collect() };
    let holders = deviation.owners.iter().copied().collect();
    Scope { steps: [deviation.step].into_iter().collect(), gradients, params, elements, holders }
}

/// The largest number of possible patterns that are listed.
const MOST_LISTED: usize = 6;

/// Returns the message about a pattern, and further facts that its weights show.
fn words(case: &Case<'_>, deviation: &Deviation) -> (String, Vec<String>) {
    let spec = case.observed.spec;
    let world = spec.world_size;
    let replicas = case.observed.replicas();
    let boundary = spec.gradient_accumulation_steps - 1;
    let example = &deviation.example;
    let not_averaged = |which: &str| {
        format!(
            "gradients{which} were not averaged across ranks: each optimizer got its own rank's gradients \
             {replicas} times over and those of no other rank"
        )
    };
    match &deviation.pattern {
        Pattern::BoundaryLeak => (
            format!(
                "the boundary microbatch {boundary} was not averaged: each rank's optimizer got its \
                 own gradient {replicas} times over and that of no other rank"
            ),
            vec![format!(
                "weight of microbatch {boundary}: {replicas} from the rank itself, 0 from the others, \
                 instead of 1 from each"
            )],
        ),
        Pattern::Missing(_) if has_lost_all(deviation) => {
            (nothing_arrived(&[]), vec![])
        }
        Pattern::Missing(sources) => (
            format!("the gradient of {} never reached the optimizer", sources_text(sources, world)),
            vec![],
        ),
        Pattern::Repeated(sources) => {
            let repeated = sources_text(sources, world);
            let counts = [(replicas, "of ranks"), (spec.gradient_accumulation_steps, "of microbatches")];
            let twice = counts.into_iter().find(|(count, _)| *count == 2 && has_weight(example, 2.0));
            let facts = twice.map(|(_, what)| {
                format!("2 is also the number {what}: a missing division by 2 looks the same")
            });
            (
                format!("the gradient of {repeated} was counted more than once"),
                facts.into_iter().collect(),
            )
        }
        Pattern::PartlyScaled(sources, factor) => {
            let slips = likely(case, deviation, *factor);
            let of = sources_text(sources, world);
            let weight = multiple_text(*factor);
            (format!("the gradient of {of} has weight {weight} instead of 1{slips}"), vec![])
        }
        Pattern::NotAveraged => {
            let late = deviation.params.as_ref().filter(|it| case.observed.script.are_late(it));
            let which = late.map_or(String::new(), |params| {
                format!(
                    " of {}, which joined the model or became trainable after DDP had wrapped it,",
                    abridged(params)
                )
            });
            (not_averaged(&which), vec![])
        }
        Pattern::PartlyAveraged(microbatches) => {
            (not_averaged(&format!(" of {}", counted("microbatch", microbatches))), vec![])
        }
        Pattern::NotSummed => (
            "gradients were not summed across ranks: each optimizer got its own rank's gradients, divided by the \
             number of ranks, as in a reduction that has not ended"
                .to_owned(),
            vec![],
        ),
        Pattern::WithinReplica(weight, microbatches) => {
            let is_all = microbatches.len() == spec.gradient_accumulation_steps;
            let which = if is_all { String::new() } else { format!(" of {}", counted("microbatch", microbatches)) };
            (
                format!(
                    "gradients{which} were not averaged over the replicas: each optimizer got those of its own replica, with \
                     weight {}, and those of no other replica",
                    weight_text(*weight),
                ),
                vec![],
            )
        }
        Pattern::Scaled(factor) => {
            let slips = likely(case, deviation, *factor);
            let message =
                format!("every gradient has weight {} instead of 1{slips}", multiple_text(*factor));
            (message, vec![])
        }
        Pattern::PartLost(part) => {
            let (which, other) = match part {
                GradientPart::Forward => ("part that goes through the engine's forward", "other part"),
                GradientPart::FirstBackward => ("part from the first of two backwards", "second part"),
                GradientPart::Beside => {
                    ("part from outside of the engine's forward", "part from the engine's forward")
                }
            };
            let fact = format!("the weight of every gradient is that of its {other}");
            (format!("of every gradient, the {which} never reached the optimizer"), vec![fact])
        }
        Pattern::ByMicrobatch(weights) if is_summed_again(case.observed.replicas(), weights) => (
            format!(
                "each microbatch weighs {} times as much as the next one, as if the accumulated gradient were \
                 summed over the ranks after each microbatch",
                case.observed.replicas()
            ),
            vec!["sum the accumulated gradient once, after the last microbatch".to_owned()],
        ),
        Pattern::ByMicrobatch(weights) => (unlike("microbatch", "microbatches", weights), vec![]),
        Pattern::ByRank(weights) => (unlike("rank", "ranks", weights), vec![]),
        Pattern::Leftover => {
            let mut facts = vec![format!(
                "weights of the earlier steps' gradients: {} (expected 0)",
                matrix_text(&example.leftover),
            )];
            let absent = missing(example);
            let mut message = "gradients of an earlier step reached the optimizer again".to_owned();
            if !absent.is_empty() {
                facts.push("the earlier gradients replace gradients of this step".to_owned());
                if is_late(case, example, &absent) {
                    message = format!(
                        "the gradient of {} reaches the optimizer one step late: the previous step's gradient is in \
                         its place",
                        sources_text(&absent, world),
                    );
                } else if case.observed.spec.script().is_some() {
                    message += &format!(
                        ", and {} did not reach it in the same step: check which microbatch is synchronised",
                        sources_text(&absent, world),
                    );
                }
            }
            (message, facts)
        }
        Pattern::OfOthers(microbatches) => (
            format!(
                "gradients of {} reached the optimizer too, although they belong to another optimizer: they were not \
                 cleared",
                counted("microbatch", microbatches),
            ),
            vec![],
        ),
        Pattern::Ambiguous(patterns) => {
            let listed = patterns.iter().take(MOST_LISTED).map(|pattern| {
                let deviation = Deviation { pattern: pattern.clone(), ..deviation.clone() };
                format!("possible: {}", words(case, &deviation).0)
            });
            let more = patterns.len().saturating_sub(MOST_LISTED);
            let more = (more > 0).then(|| format!("possible: {more} more patterns"));
            (
                "the optimizer's input is wrong, but in too few elements to identify the mistake".to_owned(),
                listed.chain(more).collect(),
            )
        }
        Pattern::Unexplained if example.residual <= example.tolerance => (
            "the weights of the gradients that the optimizer consumed follow no known pattern".to_owned(),
            vec![],
        ),
        Pattern::Unexplained => (
            "the optimizer consumed values that this run's gradients do not explain: misplaced, \
             foreign or corrupted data"
                .to_owned(),
            vec![format!(
                "the unexplained part is as large as {} contributions",
                weight_text(example.residual),
            )],
        ),
    }
}

/// True if gradients arrive one step late: each absent gradient is replaced, exactly once, by that of the previous
/// step, which was absent in that step.
fn is_late(case: &Case<'_>, entry: &Contribution, absent: &[(usize, usize)]) -> bool {
    let entries = case.decoded.contributions.iter();
    let mut before = entries
        .filter(|it| (it.point, it.rank, it.step + 1) == (entry.point, entry.rank, entry.step))
        .peekable();
    let was_absent = |it: &Contribution| {
        let then = missing(it);
        absent.iter().all(|gradient| then.contains(gradient))
    };
    let is_first = before.peek().is_none();
    let is_once = entry.leftover.iter().zip(&entry.weights).enumerate().all(|(rank, row)| {
        let (earlier, weights) = row;
        let last = &earlier[earlier.len().saturating_sub(weights.len())..];
        last.iter().enumerate().all(|(microbatch, weight)| {
            let expected = f64::from(u8::from(absent.contains(&(rank, microbatch))));
            (weight - expected).abs() <= entry.tolerance
        })
    });
    is_once && (is_first || before.any(was_absent))
}

/// True if every wrong weight of a contribution has this value.
fn has_weight(entry: &Contribution, wrong: f64) -> bool {
    let pairs = entry.weights.iter().flatten().zip(entry.expected.iter().flatten());
    let is = |weight: f64, other: f64| (weight - other).abs() <= entry.tolerance;
    pairs.into_iter().all(|(weight, expected)| is(*weight, *expected) || is(*weight, wrong))
}

/// True if each microbatch has the weight of the next one, times the number of ranks: the weights that result if the
/// accumulated gradient is summed over the ranks after each microbatch. The last weight is rounded most.
fn is_summed_again(ranks: usize, weights: &[f64]) -> bool {
    let is_it = |pair: &[f64]| (pair[0] / pair[1] / ranks as f64 - 1.0).abs() <= bounds::SAME_SCALE;
    ranks > 1 && weights.len() > 2 && weights.windows(2).all(is_it)
}

/// The message about groups of gradients that are scaled differently.
fn unlike(noun: &str, plural: &str, weights: &[f64]) -> String {
    let texts: Vec<String> = weights.iter().map(|weight| weight_text(*weight)).collect();
    let texts = abridged(&texts);
    format!(
        "gradients of different {plural} have different weights: {texts}, {noun} by {noun}, as if each {noun} were \
         scaled separately"
    )
}

/// Describes the mistakes that lead to a factor; empty if no known mistake leads to it.
fn likely(case: &Case<'_>, deviation: &Deviation, factor: f64) -> String {
    let (spec, step) = (case.observed.spec, deviation.step);
    let clipped = clipped_by_another_norm(case, deviation, factor);
    if was_right_before_step(case, deviation)
        && let Some(clipped) = &clipped
    {
        return clipped.clone();
    }
    let scale_of = |step: usize| {
        let scaled =
            (0..spec.world_size).find_map(|it| case.observed.updates.scaled.get(&(step, it)));
        scaled.map_or(1.0, |scaled| scaled.scale)
    };
    let (scale, next) = (scale_of(step), scale_of(step + 1));
    if next > scale && (factor * next / scale - 1.0).abs() < bounds::SAME_SCALE {
        return format!(
            ": divided by the loss scale of the next step, {next}, which had grown from {scale}"
        );
    }
    let clip = case.norms.of(step).map_or(1.0, |norm| spec.gradient_clipping / norm);
    let world = case.observed.replicas() as f64;
    let ga = spec.gradient_accumulation_steps as f64;
    let replicas = spec.replicas() as f64;
    let shards = if replicas > 1.0 { world / replicas } else { 1.0 };
    let predivide =
        spec.deepspeed_config().and_then(|config| config["gradient_predivide_factor"].as_f64());
    let sequence = spec.deepspeed().map_or(1.0, |deepspeed| deepspeed.sequence_parallel as f64);
    let predivide = predivide.filter(|factor| *factor > 0.0).unwrap_or(1.0);
    // The part in forward adds twice the gradient, and the part outside of it subtracts the gradient once.
    let is_beside = |shape: Shape| {
        let is_it = |names: &Vec<String>| names.iter().all(|it| shape.is_about(base_name(it)));
        spec.has_shape(shape) && deviation.params.as_ref().is_some_and(is_it)
    };
    let has_beside = [Shape::Bypass, Shape::PenaltyBackward].into_iter().any(is_beside);
    let beside = if has_beside { 2.0 - ga } else { 1.0 };
    // The first use adds twice the gradient, and the second use subtracts the gradient once.
    let first_twice = if is_beside(Shape::Tied) { 2.0 * 2.0 - 1.0 } else { 1.0 };
    let close = |candidate: f64| (factor / candidate - 1.0).abs() < bounds::SAME_SCALE;
    // Gradients that were divided twice before the clipping would have been clipped less.
    let unscaled = if clip > 0.0 && clip < 1.0 {
        "clipped by a norm that still had the loss scale, or divided by the loss scale once more afterwards"
    } else {
        "divided by the loss scale twice"
    };
    let divisor = spec.fsdp2().and_then(|fsdp2| fsdp2.gradient_divide_factor);
    let slips: Vec<&str> = [
        (divisor.filter(|it| *it != world).unwrap_or(1.0), "not divided by the requested divisor"),
        (
            1.0 / divisor.filter(|it| *it != world).unwrap_or(1.0),
            "divided by the requested divisor twice",
        ),
        (1.0 / ga, "divided by the accumulation steps twice"),
        (ga, "not divided by the accumulation steps"),
        (1.0 / world, "divided by the world size twice"),
        (world, "summed over the ranks but not divided by their number"),
        (replicas, "not divided by the number of replicas"),
        (shards, "not divided by the number of shards"),
        (
            divisor.unwrap_or(world) / world,
            "divided by the number of ranks and not by the requested divisor",
        ),
        (1.0 / sequence, "averaged instead of summed over the ranks of a sequence"),
        (1.0 / predivide, "divided by gradient_predivide_factor, which was not undone"),
        (
            beside,
            "the part outside of the engine's forward was not divided by the accumulation steps",
        ),
        (first_twice, "the parameter is used twice, and its first use was counted twice"),
        (-1.0, "of the wrong sign"),
        (scale, "multiplied by the loss scale, which was not divided out"),
        (1.0 / scale, unscaled),
        (if clip > 0.0 { clip.min(1.0) } else { 1.0 }, "clipped twice"),
    ]
    .into_iter()
    .filter_map(|(candidate, slip)| (candidate != 1.0 && close(candidate)).then_some(slip))
    .collect();
    if slips.is_empty() {
        return clipped.unwrap_or_default();
    }
    format!(": {}", slips.join(", or "))
}

/// Describes the norm by which a gradient was clipped, if that led to the factor; `None` if nothing is clipped.
fn clipped_by_another_norm(case: &Case<'_>, deviation: &Deviation, factor: f64) -> Option<String> {
    let limit = case.observed.spec.gradient_clipping;
    let norm = case.norms.of(deviation.step).filter(|norm| limit > 0.0 && *norm > 0.0)?;
    // Weights are relative to the gradients before clipping by the norm that the rank computed.
    let right =
        match Clipping::of(&case.observed, &case.norms, deviation.step, deviation.example.rank) {
            Clipping::By(factor) => factor,
            Clipping::No | Clipping::Unbounded => 1.0,
        };
    let applied = factor * right;
    let text = |norm: f64| format!("{norm:.3}");
    if right < 1.0 && (applied - 1.0).abs() < bounds::SAME_SCALE {
        let norm = text(norm);
        return Some(format!(": not clipped to {limit}, though the norm is {norm}"));
    }
    if (limit / applied / norm - 1.0).abs() < bounds::SAME_SCALE {
        return Some(format!(
            ": scaled up to a norm of {limit}, but clipping must only scale down"
        ));
    }
    (applied > 0.0).then(|| {
        let (used, right) = (text(limit / applied), text(norm));
        format!(": as if clipped to {limit} by a norm of {used} instead of {right}")
    })
}

/// True if this rank's gradient was as planned just before the step, so that the step itself changed it.
fn was_right_before_step(case: &Case<'_>, deviation: &Deviation) -> bool {
    let wrong = &deviation.example;
    let before = case.decoded.contributions.iter().filter(|entry| {
        matches!(entry.point, Point::Reduced | Point::BeforeStep)
            && (entry.step, entry.rank) == (wrong.step, wrong.rank)
    });
    let mut before = before.peekable();
    before.peek().is_some() && before.all(|entry| entry.as_planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_fall_by_the_ranks_come_from_repeated_sums() {
        assert!(is_summed_again(2, &[1.0, 0.5, 0.25, 0.1255]));
        assert!(!is_summed_again(2, &[0.25, 0.5, 1.0]) && !is_summed_again(2, &[1.0, 0.5, 0.5]));
        // Two microbatches may be scaled separately.
        assert!(!is_summed_again(2, &[1.0, 0.5]) && !is_summed_again(1, &[1.0, 1.0, 1.0]));
    }
}
