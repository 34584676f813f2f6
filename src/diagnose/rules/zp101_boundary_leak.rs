//! ZP101: the boundary microbatch is added after the reduction across ranks.

use super::super::Case;
use super::super::deviation::Pattern;
use super::Rule;
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP101",
    name: "boundary-leak",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP101.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let spec = case.observed.spec;
    let (world, boundary) = (spec.world_size, spec.gradient_accumulation_steps - 1);
    case.deviations
        .iter()
        .filter(|deviation| deviation.pattern == Pattern::BoundaryLeak)
        .map(|deviation| {
            let mut finding = rule.deviation(
                deviation,
                format!(
                    "the boundary microbatch {boundary} was not averaged: each rank's optimizer \
                     got its own {world} times over and nobody else's"
                ),
            );
            finding.microbatch = Some(boundary);
            finding.evidence.push(format!(
                "weight of microbatch {boundary}: {world} from the rank itself, 0 from the others, \
                 instead of 1 from each"
            ));
            finding
        })
        .fold(Vec::new(), super::merge)
}
