//! ZP502: ranks disagreed about whether a step overflowed.

use crate::case::Case;
use crate::overflow::{Decision, decision};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::RuleCode;
use zprobe_report::words::{by_rank, counted};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP502"),
    name: "overflow-not-agreed",
    crash: false,
    is_handed_on: true,
    explained_by: &[],
    doc: include_str!("../../docs/ZP502.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let ranks = 0..observed.spec.world_size;
    for step in observed.spec.recorded_steps() {
        let which = |wanted| -> Vec<usize> {
            let decided =
                |rank: &usize| decision(observed, &case.plan, step, *rank) == Some(wanted);
            ranks.clone().filter(decided).collect()
        };
        let (skipped, taken) = (which(Decision::Skipped), which(Decision::Taken));
        let scales: Vec<f64> = ranks
            .clone()
            .filter_map(|rank| Some(observed.updates.scaled.get(&(step, rank))?.scale))
            .collect();
        let mut finding = if !skipped.is_empty() && !taken.is_empty() {
            rule.finding(format!(
                "the overflow flag was not shared: {} skipped step {step} because of an overflow and {} took \
                 it",
                counted("rank", &skipped),
                counted("rank", &taken),
            ))
        } else if scales.iter().any(|scale| *scale != scales[0]) {
            rule.finding(format!("the ranks took step {step} with different loss scales"))
        } else {
            continue;
        };
        let decided = |rank: usize| {
            if let Some(scaled) = observed.updates.scaled.get(&(step, rank)) {
                let overflow = if scaled.overflow { "an overflow" } else { "no overflow" };
                return Some(format!("loss scale {}, {overflow}", scaled.scale));
            }
            if skipped.binary_search(&rank).is_ok() {
                return Some("failed in the step; its optimizer got no gradient".to_owned());
            }
            let given = taken.binary_search(&rank).is_ok();
            given.then(|| "its optimizer got a gradient".to_owned())
        };
        let decided = ranks.clone().filter_map(|rank| Some((rank, decided(rank)?)));
        finding.evidence.extend(by_rank(decided));
        return vec![Sighting::new(finding, Scope::step(step))];
    }
    Vec::new()
}
