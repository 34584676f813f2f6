//! ZP603: the master weights did not change by what the optimizer was given.

use super::super::Case;
use super::{Rule, departed, matrix};
use crate::report::Finding;
use crate::trace::Point;

pub(super) const RULE: Rule = Rule {
    code: "ZP603",
    name: "update-differs",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP603.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let observed = &case.observed;
    let mut findings = Vec::new();
    for step in 0..observed.spec.steps {
        for update in observed.at(Point::MasterWeights, step) {
            let rank = update.rank;
            let fed = observed.at(Point::OptimizerInput, step).any(|input| input.rank == rank);
            if !fed {
                let mut finding = rule.finding(format!(
                    "rank {rank} took no optimizer step: its inner optimizer was given nothing"
                ));
                (finding.step, finding.rank) = (Some(step), Some(rank));
                findings.push(finding);
                continue;
            }
            // Where input and update depart from the plan alike, the input is the finding.
            let input_is_right = !departed(case, Point::OptimizerInput)
                .any(|input| input.rank == rank && input.step == step);
            let wrong = departed(case, Point::MasterWeights)
                .find(|entry| entry.rank == rank && entry.step == step);
            if let (true, Some(entry)) = (input_is_right, wrong) {
                let mut finding = rule.finding(format!(
                    "the update on rank {rank} is not what its optimizer was given"
                ));
                (finding.step, finding.rank) = (Some(step), Some(rank));
                finding.evidence.push(format!(
                    "weights read from the change of the master weights: {}, residual {}",
                    matrix(&entry.weights),
                    super::weight_text(entry.residual),
                ));
                findings.push(finding);
            }
        }
    }
    findings.into_iter().fold(Vec::new(), super::merge)
}
