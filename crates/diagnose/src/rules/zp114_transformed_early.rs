//! ZP114: the gradient of each microbatch is transformed before the results are added up.

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_report::words::counted;
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP114"),
    name: "transformed-early",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../../../docs/rules/ZP114.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let ga = observed.spec.gradient_accumulation_steps;
    let all = observed.script.transformed.iter();
    let wrong: Vec<(usize, usize)> =
        all.filter(|(_, of)| ga > 1 && of.len() == ga).map(|(moment, _)| *moment).collect();
    if wrong.is_empty() {
        return Vec::new();
    }
    let sorted = |numbers: &mut dyn Iterator<Item = usize>| {
        let mut numbers: Vec<usize> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let steps = sorted(&mut wrong.iter().map(|(step, _)| *step));
    let ranks = sorted(&mut wrong.iter().map(|(_, rank)| *rank));
    let message = format!(
        "the gradient of each of the {ga} microbatches of a step is orthogonalised (Muon), and the \
         results are added up: the sum should be orthogonalised instead, once"
    );
    let evidence =
        vec![format!("seen in {} on {}", counted("step", &steps), counted("rank", &ranks))];
    let finding = Finding { evidence, ..rule.finding(message) };
    let holders = Extent::of(ranks, observed.spec.world_size);
    let scope = Scope { steps: steps.into_iter().collect(), holders, ..Scope::default() };
    vec![Sighting::new(finding, scope)]
}
