//! ZP110: a trainer accumulates over another number of microbatches than the optimizer steps after.

use super::super::Case;
use super::super::causes::Sighting;
use super::super::scope::Scope;
use super::Rule;
use crate::report::words::amount;
use crate::report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP110"),
    name: "windows-differ",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP110.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let taken = observed.spec.gradient_accumulation_steps;
    let of_all = observed.remarks.iter().flat_map(|(rank, it)| {
        it.accumulation.iter().map(move |(trainer, set)| (*rank, trainer, *set))
    });
    // One that is set to 1 leaves the accumulation to somebody else.
    let Some((_, trainer, set)) = of_all.clone().find(|(_, _, set)| *set > 1 && *set != taken)
    else {
        return Vec::new();
    };
    let message = format!(
        "{trainer} is set to accumulate over {}, and optimizers stepped after {taken}",
        amount(set, "microbatch"),
    );
    let evidence =
        of_all.map(|(rank, trainer, set)| format!("rank {rank}: {trainer} is set to {set}"));
    let finding = Finding { evidence: evidence.collect(), ..rule.finding(message) };
    vec![Sighting::new(finding, Scope::default())]
}
