//! ZP201: autograd reaches a parameter, but its gradient hook does not fire.

use crate::case::Case;
use crate::hooks::groups;
use crate::observed::Backward;
use crate::rule::{Rule, Sighting};
use zprobe_report::RuleCode;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP201"),
    name: "dead-hooks",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP401"]),
    doc: include_str!("../../docs/ZP201.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let groups = groups(case, Backward::silent);
    let sighting = groups.iter().filter_map(|group| {
        let (backward, dead) = group.first()?;
        let fired: u32 = backward.fired?.iter().sum();
        let finding = rule.finding(format!(
            "{} of {} gradient hooks did not fire: the graph reaches {} AccumulateGrad nodes, \
             {fired} hooks fired",
            dead.len(),
            backward.reached.len(),
            backward.accumulate_grad_nodes,
        ));
        Some(group.sighting(case, finding, "silent"))
    });
    sighting.collect()
}
