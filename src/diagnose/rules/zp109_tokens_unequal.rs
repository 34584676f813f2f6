//! ZP109: target tokens do not weigh what the user demands.

use super::super::Case;
use super::super::causes::Sighting;
use super::super::scope::Scope;
use super::super::tokens::{table, weigh};
use super::Rule;
use crate::report::words::{amount, weight_text};
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
    let rows = table(case);
    let extremes = [
        rows.iter().max_by(|a, b| a.most.total_cmp(&b.most)).map(|row| (row, row.most)),
        rows.iter().min_by(|a, b| a.least.total_cmp(&b.least)).map(|row| (row, row.least)),
    ];
    let told = extremes.into_iter().flatten().map(|(row, weight)| {
        format!(
            "step {}, rank {}, microbatch {} with {}: a token weighs {} times the mean",
            row.step,
            row.rank,
            row.microbatch,
            amount(row.tokens, "target token"),
            weight_text(weight),
        )
    });
    let finding = Finding { evidence: told.collect(), ..rule.finding(message) };
    vec![Sighting::new(finding, Scope::default())]
}
