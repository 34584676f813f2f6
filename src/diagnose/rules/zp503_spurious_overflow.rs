//! ZP503: the engine skipped a step because of an overflow that cannot have been.

use super::super::Case;
use super::super::overflow::reason;
use super::{Rule, by_rank, counted};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP503",
    name: "spurious-overflow",
    crash: false,
    explained_by: &["ZP201", "ZP501", "ZP502", "ZP604"],
    doc: include_str!("../../../docs/rules/ZP503.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let observed = &case.observed;
    let mut steps = Vec::new();
    let mut ranks = Vec::new();
    for step in observed.spec.recorded_steps() {
        let skipped = (0..observed.spec.world_size).filter(|&rank| observed.skipped(step, rank));
        let skipped: Vec<usize> = skipped.collect();
        if skipped.is_empty() || reason(observed, &case.plan, step).is_some() {
            continue;
        }
        steps.push(step);
        ranks.extend(skipped);
    }
    let Some(&step) = steps.first() else { return Vec::new() };
    ranks.sort_unstable();
    ranks.dedup();
    let mut finding = rule.finding(format!(
        "{} skipped {} because of an overflow, but every gradient was finite and far below the \
         largest number",
        counted("rank", &ranks),
        counted("step", &steps),
    ));
    finding.step = Some(step);
    if let ([rank], 2..) = (&ranks[..], observed.spec.world_size) {
        finding.rank = Some(*rank);
    }
    let scale = |rank: usize| observed.scaled.get(&(step, rank)).map(|scaled| scaled.scale);
    let scales =
        ranks.iter().filter_map(|&rank| Some((rank, format!("loss scale {}", scale(rank)?))));
    finding.evidence.extend(by_rank(scales));
    vec![finding]
}
