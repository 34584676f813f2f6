//! ZP201: autograd reaches a parameter, but its gradient hook does not fire.

use super::super::Case;
use super::{Rule, abridged};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP201",
    name: "dead-hooks",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP201.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let mut silent = Vec::new();
    for (at, backward) in &case.observed.backwards {
        let Some(fired) = backward.fired else { continue };
        let dead = backward.silent();
        if !dead.is_empty() {
            silent.push((at, dead, backward, fired));
        }
    }
    let Some((at, dead, backward, fired)) = silent.first() else {
        return Vec::new();
    };
    let total: u32 = fired.iter().sum();
    let mut finding = rule.finding(format!(
        "{} of {} gradient hooks did not fire: the graph reaches {} AccumulateGrad nodes, {total} \
         hooks fired",
        dead.len(),
        backward.reached.len(),
        backward.accumulate_grad_nodes,
    ));
    (finding.step, finding.microbatch) = (Some(at.step), Some(at.microbatch));
    let names: Vec<String> = dead.iter().map(|&i| case.observed.param_name(i)).collect();
    if let [name] = names.as_slice() {
        finding.param = Some(name.clone());
    }
    if silent.iter().all(|(other, ..)| other.rank == at.rank) && case.observed.spec.world_size > 1 {
        finding.rank = Some(at.rank);
    }
    finding.evidence.push(format!("silent: {}", abridged(&names)));
    finding.evidence.push(format!(
        "in {} of {} backwards",
        silent.len(),
        case.observed.backwards.len(),
    ));
    vec![finding]
}
