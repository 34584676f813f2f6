//! ZP202: a gradient hook fires more often than gradients arrive.

use super::super::Case;
use super::{Rule, abridged};
use crate::report::Finding;
use crate::report::words::amount;

pub(super) const RULE: Rule = Rule {
    code: "ZP202",
    name: "hook-fired-twice",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP202.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let repeated: Vec<_> = case
        .observed
        .backwards
        .iter()
        .map(|(at, backward)| (at, backward, backward.repeated()))
        .filter(|(_, _, params)| !params.is_empty())
        .collect();
    let Some((at, backward, params)) = repeated.first() else { return Vec::new() };
    let fired: u32 = params.iter().map(|&param| backward.firings(param)).sum();
    let arrived: u32 = params.iter().map(|&param| backward.arrivals(param)).sum();
    let mut finding = rule.finding(format!(
        "the gradient hooks of {} fired {fired} times for {}",
        amount(params.len(), "parameter"),
        amount(arrived as usize, "gradient"),
    ));
    (finding.step, finding.microbatch) = (Some(at.step), Some(at.microbatch));
    let on_one_rank = repeated.iter().all(|(other, ..)| other.rank == at.rank);
    if on_one_rank && case.observed.spec.world_size > 1 {
        finding.rank = Some(at.rank);
    }
    let names: Vec<String> = params.iter().map(|&i| case.observed.param_name(i)).collect();
    if let [name] = names.as_slice() {
        finding.param = Some(name.clone());
    }
    finding.evidence.push(format!("repeated: {}", abridged(&names)));
    finding.evidence.push(format!(
        "in {} of {} backwards",
        repeated.len(),
        case.observed.backwards.len(),
    ));
    vec![finding]
}
