//! ZP603: the master weights did not change by what the optimizer was given.

use super::super::Case;
use super::{Rule, counted, departed, matrix_text, weight_text};
use crate::report::{Contribution, Finding};
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
    for rank in 0..observed.spec.world_size {
        let updates = (0..observed.spec.steps)
            .filter(|&step| observed.at(Point::MasterWeights, step).any(|b| b.rank == rank));
        let (fed, starved): (Vec<usize>, Vec<usize>) = updates
            .partition(|&step| observed.at(Point::OptimizerInput, step).any(|b| b.rank == rank));
        if let Some(&first) = starved.first() {
            let mut finding = rule.finding(format!(
                "rank {rank} took no optimizer step: its inner optimizer was given nothing"
            ));
            (finding.step, finding.rank) = (Some(first), Some(rank));
            finding.evidence.push(format!("seen in {}", counted("step", &starved)));
            findings.push(finding);
        }
        let differing: Vec<(usize, &Contribution)> =
            fed.iter().filter_map(|&step| Some((step, differing(case, step, rank)?))).collect();
        if let Some((first, entry)) = differing.first() {
            let steps: Vec<usize> = differing.iter().map(|(step, _)| *step).collect();
            let mut finding = rule
                .finding(format!("the update on rank {rank} is not what its optimizer was given"));
            (finding.step, finding.rank) = (Some(*first), Some(rank));
            finding.evidence.push(format!(
                "weights read from the change of the master weights: {}, residual {}",
                matrix_text(&entry.weights),
                weight_text(entry.residual),
            ));
            finding.evidence.push(format!("seen in {}", counted("step", &steps)));
            findings.push(finding);
        }
    }
    findings
}

/// The weights in the update, if they are wrong although the optimizer's input was right. Where
/// both depart from the plan alike, the input is the finding.
fn differing<'a>(case: &'a Case<'_>, step: usize, rank: usize) -> Option<&'a Contribution> {
    let here = |entry: &&Contribution| entry.rank == rank && entry.step == step;
    let input_is_right = !departed(case, Point::OptimizerInput).any(|entry| here(&entry));
    departed(case, Point::MasterWeights).find(here).filter(|_| input_is_right)
}
