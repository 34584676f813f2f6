//! ZP109: target tokens do not weigh what the user demands.

use super::super::Case;
use super::super::causes::Sighting;
use super::super::scope::Scope;
use super::super::tokens::weigh;
use super::Rule;
use crate::report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP109"),
    name: "tokens-unequal",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP109.md"),
    check,
};

/// Most microbatches that the evidence lists.
const LISTED: usize = 16;

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let spec = case.observed.spec;
    let Some(script) = spec.script() else { return Vec::new() };
    let Some(weighed) = weigh(case).filter(|weighed| !weighed.is(script.weighting, spec)) else {
        return Vec::new();
    };
    let sum = weighed.sum(spec).map_or(String::new(), |sum| format!("; together {sum}"));
    let message = format!(
        "{}{sum}; --weighting {} demands something else",
        weighed.describe(),
        script.weighting,
    );
    let rows = weighed.microbatches.iter().take(LISTED).map(|(rank, it)| {
        format!(
            "rank {rank}, microbatch {}: {} tokens of weight {:.4e} to {:.4e}, together {:.4e}",
            it.microbatch, it.tokens, it.least, it.most, it.total,
        )
    });
    let finding = Finding { evidence: rows.collect(), ..rule.finding(message) };
    vec![Sighting::new(finding, Scope::default())]
}
