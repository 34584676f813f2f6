//! ZP107: the optimizer consumed something that no known pattern explains.

use super::super::Case;
use super::super::deviation::Pattern;
use super::{Rule, weight_text};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP107",
    name: "unexplained-gradient",
    crash: false,
    explained_by: &["ZP801"],
    doc: include_str!("../../../docs/rules/ZP107.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    case.deviations
        .iter()
        .filter(|deviation| deviation.pattern == Pattern::Unexplained)
        .map(|deviation| {
            let message =
                "the optimizer consumed values that this run's gradients do not explain: \
                           misplaced, foreign or corrupted data"
                    .to_owned();
            let mut finding = rule.deviation(deviation, message);
            finding.evidence.push(format!(
                "part that no gradient explains: {} of one contribution",
                weight_text(deviation.example.residual),
            ));
            finding
        })
        .fold(Vec::new(), super::merge)
}
