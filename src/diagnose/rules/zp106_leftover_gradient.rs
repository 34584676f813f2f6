//! ZP106: gradients of an earlier step are applied again.

use super::super::Case;
use super::super::deviation::Pattern;
use super::{Rule, matrix_text};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP106",
    name: "leftover-gradient",
    crash: false,
    explained_by: &["ZP402", "ZP701"],
    doc: include_str!("../../../docs/rules/ZP106.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    case.deviations
        .iter()
        .filter(|deviation| deviation.pattern == Pattern::Leftover)
        .map(|deviation| {
            let message = "gradients of an earlier step reached the optimizer again".to_owned();
            let mut finding = rule.deviation(deviation, message);
            let example = &deviation.example;
            finding.evidence.push(format!(
                "weights of the earlier steps' gradients: {} (expected 0)",
                matrix_text(&example.leftover),
            ));
            let missing = |(weights, expected): (&Vec<f64>, &Vec<f64>)| {
                weights.iter().zip(expected).any(|(w, e)| *e != 0.0 && w.abs() <= example.tolerance)
            };
            if example.weights.iter().zip(&example.expected).any(missing) {
                finding.evidence.push("they are there in place of gradients of this step".into());
            }
            finding
        })
        .fold(Vec::new(), super::merge)
}
