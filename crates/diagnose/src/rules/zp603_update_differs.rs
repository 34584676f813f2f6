//! ZP603: the master weights did not change by the optimizer's input, a frozen parameter changed, a script multiplied
//! its parameters after a step, or no step changed a parameter.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::deviation::Pattern;
use crate::infinity::parts;
use crate::observed::Buffer;
use crate::placement::Fragment;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::trace::{LayoutName, Point};
use zprobe_report::words::{abridged, counted, matrix_text, weight_text};
use zprobe_report::{Contribution, Finding, RuleCode};

/// The largest relative difference between the factor of parameters and the number of ranks.
const SAME_FACTOR: f64 = 0.1;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP603"),
    name: "update-differs",
    crash: false,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP611"]),
    doc: include_str!("../../docs/ZP603.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let (mut starved, mut differing) = (Vec::new(), Vec::new());
    for step in observed.spec.recorded_steps() {
        for update in observed.buffers.at(Point::MasterWeights, step) {
            let rank = update.rank;
            let fed = observed.buffers.of_rank(rank, Point::OptimizerInput, step).next().is_some();
            let ga = observed.spec.gradient_accumulation_steps;
            // A skipped step has a reason; if not, ZP502 or ZP503 reports it.
            let nothing_due = !case.placement.is_due(&case.plan, step, rank, ga);
            // The weights were recorded, but a step that failed was not taken; ZP901 reports the reason.
            let failed = observed.failed_in(step, rank);
            if observed.updates.skipped(step, rank) || failed || !fed && nothing_due {
                continue;
            }
            if !fed {
                // If no gradient arrived, ZP102 reports it.
                if !is_missing(case, step, rank) {
                    starved.push((step, rank, None));
                }
            } else if let Some(entry) = wrong_update(case, step, rank) {
                differing.push((step, rank, Some(entry)));
            }
        }
    }
    let no_step = "took no optimizer step: the inner optimizer got no gradient";
    let other_step = "changed the master weights by other values than the optimizer's input";
    [(starved, no_step), (differing, other_step)]
        .into_iter()
        .filter_map(|(seen, what)| finding(rule, &seen, what))
        .chain(thawed(case, rule))
        .chain(multiplied(case, rule))
        .chain(unmoved(case, rule))
        .collect()
}

/// Reports parameters that a script's optimizers left unchanged in each step, although they got gradients.
fn unmoved(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let all = &case.observed.updates.unmoved;
    let steps: BTreeSet<usize> = all.keys().map(|(step, _)| *step).collect();
    // The values after the last step are unknown.
    let watched: BTreeSet<usize> = (1..case.observed.spec.steps).map(|step| step - 1).collect();
    if steps.len() < 2 || steps != watched {
        return None;
    }
    let mut of_each =
        all.values().map(|params| params.iter().copied().collect::<BTreeSet<usize>>());
    let first = of_each.next()?;
    let params = of_each.fold(first, |common, params| &common & &params);
    let names: Vec<String> =
        params.iter().map(|param| case.observed.model.param_name(*param)).collect();
    if names.is_empty() {
        return None;
    }
    let mut finding = rule.finding(format!(
        "no step changed {}, although an optimizer got the gradients and changed other parameters",
        abridged(&names)
    ));
    finding.evidence.extend(case.observed.script.step_lines());
    let holders = all.keys().map(|(_, rank)| *rank).collect();
    let scope = Scope {
        steps: steps.into_iter().collect(),
        params: params.into_iter().collect(),
        holders,
        ..Scope::default()
    };
    Some(Sighting::new(finding, scope))
}

/// Reports parameters that the script multiplied by the number of ranks, or divided by it, after a step.
fn multiplied(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let world = case.observed.spec.world_size as f64;
    let by_ranks = |factor: f64| world > 1.0 && (factor / world - 1.0).abs() <= SAME_FACTOR;
    let all = case.observed.updates.multiplied.iter();
    let seen: Vec<(usize, usize, f64)> = all
        .map(|(&(step, rank), &factor)| (step, rank, factor))
        .filter(|(.., factor)| by_ranks(*factor) || by_ranks(1.0 / *factor))
        .collect();
    let &(step, _, factor) = seen.first()?;
    let what = if factor > 1.0 { "multiplied" } else { "divided" };
    let message = format!(
        "after step {step}, the script {what} all parameters by {world}, the number of ranks"
    );
    let finding = Finding { step: Some(step), ..rule.finding(message) };
    let steps = seen.iter().map(|(step, ..)| *step).collect();
    let holders = seen.iter().map(|(_, rank, _)| *rank).collect();
    Some(Sighting::new(finding, Scope { steps, holders, ..Scope::default() }))
}

/// Reports a parameter that requires no gradient but differs from its value before the first step.
fn thawed(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let all = case.observed.buffers.all.iter();
    let parameters =
        || all.clone().filter(|b| b.point == Point::Parameters && b.layout == LayoutName::Full);
    let frozen = || case.plan.params().iter().enumerate().filter(|(_, param)| !param.trainable);
    frozen().next()?;
    let mut at_first: BTreeMap<usize, &Buffer<'_>> = BTreeMap::new();
    for before in parameters().filter(|buffer| buffer.step.is_none()) {
        at_first.entry(before.rank).or_insert(before);
    }
    parameters().find_map(|after| {
        let before = at_first.get(&after.rank)?;
        let recorded = parts(&case.observed, &case.plan, after);
        let (before, values) = (before.payload.values().ok()?, after.payload.values().ok()?);
        let differs = |part: &Fragment| {
            let place = part.start..part.start + part.flat.len();
            before.get(place.clone()) != values.get(place)
        };
        let (number, changed) = frozen().find(|(_, param)| {
            let of_param = |part: &&Fragment| param.range().contains(&part.flat.start);
            recorded.iter().filter(of_param).any(differs)
        })?;
        let finding =
            rule.finding(format!("{} requires no gradient, but was changed", changed.name));
        let scope = Scope {
            params: [number].into_iter().collect(),
            holders: [after.rank].into_iter().collect(),
            ..after.step.map_or_else(Scope::default, Scope::step)
        };
        Some(Sighting::new(finding, scope))
    })
}

fn finding(
    rule: &Rule,
    seen: &[(usize, usize, Option<&Contribution>)],
    what: &str,
) -> Option<Sighting> {
    let &(.., entry) = seen.first()?;
    let distinct = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
        numbers.collect::<BTreeSet<_>>().into_iter().collect()
    };
    let steps = distinct(&mut seen.iter().map(|seen| seen.0));
    let ranks = distinct(&mut seen.iter().map(|seen| seen.1));
    let mut finding = rule.finding(format!("{} {what}", counted("rank", &ranks)));
    finding.evidence.push(format!("seen in {}", counted("step", &steps)));
    finding.evidence.extend(entry.map(|entry| {
        format!(
            "weights read from the change of the master weights of rank {}: {}, residual {}",
            entry.rank,
            matrix_text(&entry.weights),
            weight_text(entry.residual),
        )
    }));
    let (steps, holders) = (steps.into_iter().collect(), ranks.into_iter().collect());
    Some(Sighting::new(finding, Scope { steps, holders, ..Scope::default() }))
}

/// True if gradients that a rank's optimizer should have consumed in a step never arrived.
fn is_missing(case: &Case<'_>, step: usize, rank: usize) -> bool {
    case.deviations.iter().any(|deviation| {
        matches!(deviation.pattern, Pattern::Missing(_))
            && deviation.step == step
            && deviation.owners.contains(&rank)
    })
}

/// Returns the weights in the update if they are wrong although the optimizer's input was right. If both depart from
/// the plan, the input is the finding.
fn wrong_update<'a>(case: &'a Case<'_>, step: usize, rank: usize) -> Option<&'a Contribution> {
    let here = |entry: &&Contribution| entry.is_of(rank) && entry.step == step;
    let input_is_right = !case.decoded.departed(Point::OptimizerInput).any(|entry| here(&entry));
    case.decoded.departed(Point::MasterWeights).find(here).filter(|_| input_is_right)
}
