//! ZP202: a gradient hook fires more often than gradients arrive.

use crate::case::Case;
use crate::hooks::groups;
use crate::observed::Backward;
use crate::rule::{Rule, Sighting};
use zprobe_report::RuleCode;
use zprobe_report::words::amount;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP202"),
    name: "hook-fired-twice",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP202.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let groups = groups(case, Backward::repeated);
    let sighting = groups.iter().filter_map(|group| {
        let (backward, params) = group.first()?;
        let fired: u32 = params.iter().map(|&param| backward.firings(param)).sum();
        let arrived: u32 = params.iter().map(|&param| backward.arrivals(param)).sum();
        let finding = rule.finding(format!(
            "the gradient hooks of {} fired {fired} times for {}",
            amount(params.len(), "parameter"),
            amount(arrived as usize, "gradient"),
        ));
        Some(group.sighting(case, finding, "repeated"))
    });
    sighting.collect()
}
