//! ZP801: ranks were about to issue different collectives.

use std::collections::HashMap;

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::RuleCode;
use zprobe_report::words::by_rank;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP801"),
    name: "collective-mismatch",
    crash: true,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP502"]),
    doc: include_str!("../../docs/ZP801.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let Some((sequence, announced)) = case.observed.exchanges.mismatches.first_key_value() else {
        return Vec::new();
    };
    let mut finding = rule.finding(format!(
        "the ranks reached collective {sequence} with different operations; the collective was not issued"
    ));
    // A single rank that disagrees with all others is at fault; of two ranks, neither is known to be at fault.
    let mut alike: HashMap<&str, usize> = HashMap::new();
    for own in announced.iter() {
        *alike.entry(own).or_default() += 1;
    }
    let odd: Vec<usize> = announced
        .iter()
        .enumerate()
        .filter(|(_, own)| alike[own.as_str()] == 1)
        .map(|(rank, _)| rank)
        .collect();
    if let ([rank], 3..) = (&odd[..], announced.len()) {
        finding.rank = Some(*rank);
    }
    finding.evidence = by_rank(announced.iter().cloned().enumerate());
    vec![Sighting::new(finding, Scope::default())]
}
