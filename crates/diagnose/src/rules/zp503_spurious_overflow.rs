//! ZP503: the engine skipped a step because of an overflow that cannot have happened.

use crate::case::Case;
use crate::overflow::reason;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_report::RuleCode;
use zprobe_report::words::{by_rank, counted};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP503"),
    name: "spurious-overflow",
    crash: false,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP107", "ZP110", "ZP201", "ZP501", "ZP502", "ZP604", "ZP611"]),
    doc: include_str!("../../docs/ZP503.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let mut steps = Vec::new();
    let mut ranks = Vec::new();
    for step in observed.spec.recorded_steps() {
        let skipped =
            (0..observed.spec.world_size).filter(|&rank| observed.updates.skipped(step, rank));
        let skipped: Vec<usize> = skipped.collect();
        if skipped.is_empty() || reason(observed, &case.plan, step).is_some() {
            continue;
        }
        steps.push(step);
        ranks.extend(skipped);
    }
    if steps.is_empty() {
        return Vec::new();
    }
    ranks.sort_unstable();
    ranks.dedup();
    let mut finding = rule.finding(format!(
        "{} skipped {} because of an overflow, but every gradient was finite and far below the \
         largest number of the dtype",
        counted("rank", &ranks),
        counted("step", &steps),
    ));
    let first = steps[0];
    let scale =
        |rank: usize| observed.updates.scaled.get(&(first, rank)).map(|scaled| scaled.scale);
    let scales =
        ranks.iter().filter_map(|&rank| Some((rank, format!("loss scale {}", scale(rank)?))));
    finding.evidence.extend(by_rank(scales));
    let holders = Extent::of(ranks, observed.spec.world_size);
    let steps = steps.into_iter().collect();
    vec![Sighting::new(finding, Scope { steps, holders, ..Scope::default() })]
}
