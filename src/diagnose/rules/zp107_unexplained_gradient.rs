//! ZP107: the optimizer consumed something that no known pattern explains.

use super::super::Case;
use super::super::deviation::Pattern;
use super::{Rule, weight_text};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP107",
    name: "unexplained-gradient",
    crash: false,
    explained_by: &["ZP201", "ZP401", "ZP402", "ZP501", "ZP801"],
    doc: include_str!("../../../docs/rules/ZP107.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    case.deviations
        .iter()
        .filter(|deviation| deviation.pattern == Pattern::Unexplained)
        .map(|deviation| {
            let example = &deviation.example;
            if example.residual <= example.tolerance {
                let message = "the gradients that the optimizer consumed have weights of no known \
                               pattern";
                return rule.deviation(deviation, message.to_owned());
            }
            let message = "the optimizer consumed values that this run's gradients do not explain: \
                           misplaced, foreign or corrupted data";
            let mut finding = rule.deviation(deviation, message.to_owned());
            finding.evidence.push(format!(
                "what no gradient explains is as large as {} contributions",
                weight_text(example.residual),
            ));
            finding
        })
        .fold(Vec::new(), super::merge)
}
