//! ZP108: ranks take different numbers of microbatches in a step.

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP108"),
    name: "unequal-microbatches",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP108.md"),
    check: |case, rule| rule.in_steps_of_script(case, in_step),
};

fn in_step(case: &Case<'_>, rule: &Rule, step: usize) -> Option<Sighting> {
    let counts = case.observed.microbatches(step);
    let (fewest, most) = (*counts.iter().min()?, *counts.iter().max()?);
    if fewest == most || fewest == 0 {
        return None;
    }
    let odd = counts.iter().position(|count| *count == fewest)?;
    let message =
        format!("rank {odd} ran {fewest} microbatches in a step in which other ranks ran {most}");
    let finding = Finding {
        step: Some(step),
        rank: Some(odd),
        evidence: vec![format!("microbatches by rank: {counts:?}")],
        ..rule.finding(message)
    };
    let scope = Scope { steps: [step].into_iter().collect(), ..Scope::default() };
    Some(Sighting::one_of(finding, scope))
}
