//! ZP114: the gradient of each microbatch is transformed before the results are added up, or no gradient is transformed.

use std::collections::BTreeSet;

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::spec::Optimizer;
use zprobe_report::words::counted;
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP114"),
    name: "transformed-early",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP114.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let ga = observed.spec.gradient_accumulation_steps;
    let all = observed.script.transformed.iter();
    let early: Vec<(usize, usize)> =
        all.filter(|(_, of)| ga > 1 && of.len() == ga).map(|(moment, _)| *moment).collect();
    let message = format!(
        "the gradient of each of the {ga} microbatches of a step is orthogonalised (Muon), and the \
         results are added up: the sum should be orthogonalised instead, once"
    );
    let never = "no gradient is orthogonalised, so the update of Muon is that of SGD".to_owned();
    let found =
        [sighting(case, rule, &early, message), sighting(case, rule, &never_in(case), never)];
    found.into_iter().flatten().collect()
}

/// Returns the steps, with the ranks, in which Muon stepped although no rank had transformed a gradient.
fn never_in(case: &Case<'_>) -> Vec<(usize, usize)> {
    let observed = &case.observed;
    if observed.spec.optimizer != Optimizer::Muon {
        return Vec::new();
    }
    let transformed: BTreeSet<usize> =
        observed.script.transformed.keys().map(|(step, _)| *step).collect();
    let stepped = observed.updates.called.iter().filter(|(_, called)| !called.is_empty());
    let moments = stepped.map(|(moment, _)| *moment);
    moments.filter(|(step, _)| !transformed.contains(step)).collect()
}

/// Returns the sighting of a wrong transformation in some steps of ranks; `None` without such a step.
fn sighting(
    case: &Case<'_>,
    rule: &Rule,
    wrong: &[(usize, usize)],
    message: String,
) -> Option<Sighting> {
    if wrong.is_empty() {
        return None;
    }
    let sorted = |numbers: &mut dyn Iterator<Item = usize>| {
        let mut numbers: Vec<usize> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let steps = sorted(&mut wrong.iter().map(|(step, _)| *step));
    let ranks = sorted(&mut wrong.iter().map(|(_, rank)| *rank));
    let evidence =
        vec![format!("seen in {} on {}", counted("step", &steps), counted("rank", &ranks))];
    let finding = Finding { evidence, ..rule.finding(message) };
    let holders = Extent::of(ranks, case.observed.spec.world_size);
    let scope = Scope { steps: steps.into_iter().collect(), holders, ..Scope::default() };
    Some(Sighting::new(finding, scope))
}
