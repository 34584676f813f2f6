//! ZP104: the reduction across ranks did not take place.

use super::super::Case;
use super::super::deviation::Pattern;
use super::Rule;
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP104",
    name: "not-averaged",
    crash: false,
    explained_by: &["ZP201", "ZP801"],
    doc: include_str!("../../../docs/rules/ZP104.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let world = case.observed.spec.world_size;
    case.deviations
        .iter()
        .filter(|deviation| deviation.pattern == Pattern::NotAveraged)
        .map(|deviation| {
            let message = format!(
                "gradients were not averaged across ranks: each optimizer got its own rank's \
                 {world} times over and nobody else's"
            );
            rule.deviation(deviation, message)
        })
        .fold(Vec::new(), super::merge)
}
