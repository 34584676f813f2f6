//! ZP103: a gradient reached the optimizer more than once.

use super::super::Case;
use super::super::deviation::Pattern;
use super::{Rule, only_microbatch, sources_text};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP103",
    name: "microbatch-repeated",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP103.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    case.deviations
        .iter()
        .filter_map(|deviation| {
            let Pattern::Repeated(sources) = &deviation.pattern else { return None };
            let repeated = sources_text(sources, case.observed.spec.world_size);
            let message = format!("the gradient of {repeated} was counted more than once");
            let mut finding = rule.deviation(deviation, message);
            finding.microbatch = only_microbatch(sources);
            Some(finding)
        })
        .fold(Vec::new(), super::merge)
}
