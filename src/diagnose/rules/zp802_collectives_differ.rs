//! ZP802: ranks issued different collectives, one for another.

use std::collections::BTreeMap;

use super::super::Case;
use super::super::causes::Sighting;
use super::super::observed::Collective;
use super::super::scope::Scope;
use super::{Rule, by_rank};
use crate::report::RuleCode;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP802"),
    name: "collectives-differ",
    crash: false,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP502"]),
    doc: include_str!("../../../docs/rules/ZP802.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    // Ranks that compare before they issue anything say so themselves (ZP801).
    let issued =
        |collective: &&Collective<'_>| !case.observed.mismatches.contains_key(&collective.sequence);
    // A collective that a rank did not come to is no difference: the rank may have died, or the
    // trace may have ended.
    let mut entered: BTreeMap<u64, Vec<(usize, Collective<'_>)>> = BTreeMap::new();
    for (rank, process) in case.observed.processes.iter().enumerate() {
        for &collective in process.collectives.iter().filter(issued) {
            entered.entry(collective.sequence).or_default().push((rank, collective));
        }
    }
    let differ = |ranks: &[(usize, Collective<'_>)]| {
        ranks.iter().any(|(_, collective)| *collective != ranks[0].1)
    };
    let Some((sequence, ranks)) = entered.into_iter().find(|(_, ranks)| differ(ranks)) else {
        return Vec::new();
    };
    let mut finding = rule.finding(format!(
        "the ranks issued different collectives as number {sequence}: what they received is \
         another's data, or the run ends here"
    ));
    // A single rank against all others that agree is at fault; of two ranks neither is known to be.
    let alone = |own: &Collective<'_>| ranks.iter().filter(|(_, other)| other == own).count() == 1;
    let odd: Vec<usize> =
        ranks.iter().filter(|(_, own)| alone(own)).map(|(rank, _)| *rank).collect();
    if let ([rank], 3..) = (&odd[..], ranks.len()) {
        finding.rank = Some(*rank);
    }
    finding.evidence = by_rank(ranks.iter().map(|(rank, Collective { op, dtype, numel, .. })| {
        (*rank, format!("{op} of {numel} {dtype}"))
    }));
    vec![Sighting::new(finding, Scope::default())]
}
