//! Arranges findings by root cause: a finding that another finding explains becomes its consequence.

use crate::case::Case;
use crate::rule::{Merge, Rule, Sighting};
use crate::scope::{Extent, Scope};
use crate::wording::nothing_arrived;
use zprobe_report::words::{abridged, counted};
use zprobe_report::{Consequence, Family, Finding};

/// Turns sightings into findings: an explained sighting becomes a consequence of its root cause, and sightings
/// that are alike are merged.
pub fn arrange(case: &Case<'_>, rules: &[Rule], sightings: Vec<Sighting>) -> Vec<Finding> {
    let causes: Vec<Option<usize>> =
        (0..sightings.len()).map(|effect| cause(rules, &sightings, effect)).collect();
    let mut roots: Vec<(Vec<usize>, Sighting, Vec<Sighting>)> = Vec::new();
    let mut explained = Vec::new();
    for (number, sighting) in sightings.into_iter().enumerate() {
        if causes[number].is_some() {
            explained.push((root(&causes, number), sighting));
            continue;
        }
        match roots.iter_mut().find(|(_, known, _)| known.is_alike(&sighting)) {
            Some((numbers, known, _)) => {
                numbers.push(number);
                known.take_in(sighting);
            }
            None => roots.push((vec![number], sighting, Vec::new())),
        }
    }
    for (root, sighting) in explained {
        let of_root = roots.iter_mut().find(|(numbers, ..)| numbers.contains(&root));
        let Some((_, _, consequences)) = of_root else { continue };
        match consequences.iter_mut().find(|known| known.is_alike(&sighting)) {
            Some(known) => known.take_in(sighting),
            None => consequences.push(sighting),
        }
    }
    let with_consequences = |(_, root, consequences): (Vec<usize>, Sighting, Vec<Sighting>)| {
        let mut finding = told(root, case);
        for Finding { code, message, consequences, .. } in
            consequences.into_iter().map(|it| told(it, case))
        {
            finding.consequences.push(Consequence { code, message });
            finding.consequences.extend(consequences);
        }
        finding
    };
    roots.into_iter().map(with_consequences).collect()
}

/// Returns the index of the sighting that explains the sighting `effect`. The first code in its rule's `explained_by`
/// with a sighting that may explain it decides; of several such sightings, the latest step wins.
fn cause(rules: &[Rule], sightings: &[Sighting], effect: usize) -> Option<usize> {
    let Sighting { finding, scope, .. } = &sightings[effect];
    let Rule { explained_by, is_handed_on, .. } =
        rules.iter().find(|rule| rule.code == finding.code)?;
    explained_by.iter().find_map(|code| {
        let may_explain = |(_, other): &(usize, &Sighting)| {
            other.finding.code == *code && other.scope.may_explain(scope, *is_handed_on)
        };
        let causes = sightings.iter().enumerate().filter(may_explain);
        // `max_by_key` takes the last maximum, so that after `rev` the first sighting of a step wins.
        let latest = causes.rev().max_by_key(|(_, cause)| cause.scope.steps.first());
        latest.map(|(number, _)| number)
    })
}

/// Returns the index at the end of the chain of causes that starts at `number`. Chains end, because explanations have
/// no cycles (`tests/it/documentation.rs`).
fn root(causes: &[Option<usize>], number: usize) -> usize {
    causes[number].map_or(number, |cause| root(causes, cause))
}

/// The text about the elements of a scope, for a message and for its evidence.
struct ElementsText {
    /// The text for the message: the elements themselves if they are one run, otherwise their number.
    short: String,
    /// The list of all elements, if the message does not contain it.
    fact: Option<String>,
}

/// Describes the elements of a scope; `None` if the scope covers whole parameters.
fn elements_text(case: &Case<'_>, scope: &Scope) -> Option<ElementsText> {
    let Extent::Only(runs) = &scope.elements else { return None };
    let text = |(param, [first, end]): &(usize, [usize; 2])| {
        let name = case.observed.model.param_name(*param);
        match (*first, end - first) {
            (0, len) if len == case.plan.params()[*param].numel() => name,
            (first, 1) => format!("{name}[{first}]"),
            (first, _) => format!("{name}[{first}:{end}]"),
        }
    };
    let mut joined: Vec<(usize, [usize; 2])> = Vec::new();
    for &(param, [first, end]) in runs {
        match joined.last_mut() {
            Some((same, [_, last])) if *same == param && first <= *last => *last = end.max(*last),
            _ => joined.push((param, [first, end])),
        }
    }
    let all: Vec<String> = joined.iter().map(text).collect();
    let count: usize = joined.iter().map(|(_, [first, end])| end - first).sum();
    let noun = if count == 1 { "element" } else { "elements" };
    Some(match all.as_slice() {
        [only] => ElementsText { short: format!("{count} {noun}, {only}"), fact: None },
        _ => ElementsText {
            short: format!("{count} {noun} in {} places", all.len()),
            fact: Some(format!("elements: {}", abridged(&all))),
        },
    })
}

/// Returns the finding of a sighting. Its step, microbatch, rank and parameter come from the scope if the rule left
/// them open. Findings about weights also list the steps, ranks and parameters of the scope.
fn told(sighting: Sighting, case: &Case<'_>) -> Finding {
    let name = |&param: &usize| case.observed.model.param_name(param);
    let Sighting { mut finding, scope, merge } = sighting;
    finding.step = finding.step.or(scope.steps.first().copied());
    finding.microbatch = finding.microbatch.or(scope.only_microbatch());
    finding.rank = finding.rank.or(scope.holders.only().copied());
    finding.param = finding.param.or(scope.params.only().map(name));
    let all_alike = matches!(merge, Merge::All);
    let elements = elements_text(case, &scope);
    let steps: Vec<usize> = scope.steps.members().copied().collect();
    if matches!(finding.code.family(), Family::Weights | Family::Offload) {
        let holders: Vec<usize> = scope.holders.members().copied().collect();
        let mut facts = Vec::new();
        if !steps.is_empty() || !holders.is_empty() {
            let on = |holders: &[usize]| format!(" on {}", counted("rank", holders));
            let on = if holders.is_empty() { String::new() } else { on(&holders) };
            facts.push(format!("seen in {}{on}", counted("step", &steps)));
        }
        let params: Vec<String> = scope.params.members().map(name).collect();
        if !params.is_empty() {
            facts.push(format!("parameters: {}", abridged(&params)));
            if all_alike && finding.code.family() == Family::Weights {
                finding.message = nothing_arrived(&params);
            }
        }
        if let Some(elements) = elements {
            finding.message = format!("{}: {}", finding.message, elements.short);
            facts.extend(elements.fact);
        }
        // The first two facts are the weights and their first departure from the plan.
        let place = finding.evidence.len().min(2);
        finding.evidence.splice(place..place, facts);
    } else if !matches!(merge, Merge::Never) && steps.len() > 1 {
        finding.evidence.push(format!("seen in {}", counted("step", &steps)));
    }
    finding
}
