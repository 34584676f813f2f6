//! ZP606: an optimizer steps twice with the same gradients, or some ranks do not step.

use std::collections::{BTreeMap, BTreeSet};

use crate::account::account;
use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_report::words::counted;
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP606"),
    name: "steps-differ",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP401"]),
    doc: include_str!("../../docs/ZP606.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.script().is_none() {
        return Vec::new();
    }
    let never = never_stepped(case, rule).or_else(|| one_never_stepped(case, rule));
    // A rank that never steps leaves out each step, which is reported only once.
    let left_out = if never.is_none() { left_out(case, rule) } else { Vec::new() };
    stepped_again(case, rule).into_iter().chain(never).chain(left_out).collect()
}

/// Reports an optimizer that stepped again without a backward since its last step.
fn stepped_again(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let all = case.observed.updates.stepped.iter();
    let again: Vec<((usize, usize), &str)> = all
        .flat_map(|(at, steps)| steps.iter().map(move |step| (*at, *step)))
        .filter(|(_, step)| step.again)
        .map(|(at, step)| (at, step.name.as_str()))
        .collect();
    let &((step, _), name) = again.first()?;
    let ranks: BTreeSet<usize> = again.iter().map(|((_, rank), _)| *rank).collect();
    let steps: BTreeSet<usize> = again.iter().map(|((step, _), _)| *step).collect();
    let message = format!("{name} stepped twice with the same gradients");
    let mut finding = Finding { step: Some(step), ..rule.finding(message) };
    let of = ranks.iter().copied().collect::<Vec<_>>();
    let steps: Vec<usize> = steps.into_iter().collect();
    finding.evidence.push(format!("in {} on {}", counted("step", &steps), counted("rank", &of)));
    finding.evidence.extend(case.observed.script.step_lines());
    let holders = Extent::of(ranks, case.observed.spec.world_size);
    Some(Sighting::new(
        finding,
        Scope { holders, steps: steps.into_iter().collect(), ..Scope::default() },
    ))
}

/// Reports ranks on which no optimizer stepped, although others stepped.
fn never_stepped(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let observed = &case.observed;
    let stepped: BTreeSet<usize> = observed.updates.stepped.keys().map(|(_, rank)| *rank).collect();
    let went_backward: BTreeSet<usize> =
        observed.script.losses.keys().map(|(_, rank)| *rank).collect();
    let is_known = |rank: &&usize| {
        !observed.processes.ranks[**rank].was_cut_off() && !observed.script.receives(**rank)
    };
    let idle: Vec<usize> = went_backward.difference(&stepped).filter(is_known).copied().collect();
    if stepped.is_empty() || idle.is_empty() {
        return None;
    }
    let others: Vec<usize> = stepped.into_iter().collect();
    let message = format!(
        "no optimizer stepped on {}, but the optimizers of {} did",
        counted("rank", &idle),
        counted("rank", &others),
    );
    let mut finding = Finding { rank: idle.first().copied(), ..rule.finding(message) };
    finding.evidence.extend(case.observed.script.step_lines());
    let holders = idle.into_iter().collect();
    Some(Sighting::new(finding, Scope { holders, ..Scope::default() }))
}

/// Reports an optimizer that never stepped on some ranks, while all optimizers stepped on the other ranks, one of the
/// same class among them.
fn one_never_stepped(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let observed = &case.observed;
    let idle: BTreeMap<usize, &String> = {
        let remarks = observed.script.remarks.iter();
        let own = remarks.filter(|(rank, _)| !observed.script.receives(**rank));
        own.filter_map(|(rank, it)| Some((*rank, it.idle.first()?))).collect()
    };
    let name = *idle.values().next()?;
    let stepped = observed.updates.stepped.iter().filter(|((_, rank), steps)| {
        !idle.contains_key(rank) && steps.iter().any(|step| step.name == *name)
    });
    let others: BTreeSet<usize> = stepped.map(|((_, rank), _)| *rank).collect();
    let ranks: Vec<usize> = idle.keys().copied().collect();
    if others.is_empty() {
        return None;
    }
    let message = format!(
        "an optimizer ({name}) never stepped on {}, but all optimizers of {} did",
        counted("rank", &ranks),
        counted("rank", &others.into_iter().collect::<Vec<_>>()),
    );
    let mut finding = Finding { rank: ranks.first().copied(), ..rule.finding(message) };
    finding.evidence.extend(case.observed.script.step_lines());
    let holders = ranks.into_iter().collect();
    Some(Sighting::new(finding, Scope { holders, ..Scope::default() }))
}

/// Reports ranks that left out a step that others took.
fn left_out(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let mut of_step: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, step) in observed.behind() {
        of_step.entry(step).or_default().push(rank);
    }
    let sightings = of_step.into_iter().map(|(step, ranks)| {
        let world = 0..observed.spec.world_size;
        let others: Vec<usize> = world.filter(|rank| !ranks.contains(rank)).collect();
        let message = format!(
            "no optimizer stepped on {} after the backwards of step {step}, but the optimizers of {} did",
            counted("rank", &ranks),
            counted("rank", &others),
        );
        let rank = ranks.first().copied();
        let mut finding = Finding { step: Some(step), rank, ..rule.finding(message) };
        finding.evidence.extend(case.observed.script.step_lines());
        let failures = ranks.iter().filter_map(|rank| observed.processes.ranks[*rank].failure);
        finding.evidence.extend(failures.take(1).map(|it| format!("afterwards: {}", account(it))));
        let holders = ranks.into_iter().collect();
        Sighting::new(
            finding,
            Scope { holders, steps: std::iter::once(step).collect(), ..Scope::default() },
        )
    });
    sightings.collect()
}
