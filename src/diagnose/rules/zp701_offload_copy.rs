//! ZP701: what the optimizer consumed in the host's memory is not what was copied there.

use super::super::Case;
use super::super::deviation::{Deviation, Pattern};
use super::Rule;
use crate::report::{Contribution, Finding};
use crate::spec::Offload;
use crate::trace::Point;

pub(super) const RULE: Rule = Rule {
    code: "ZP701",
    name: "offload-copy",
    crash: false,
    explained_by: &["ZP401", "ZP402"],
    doc: include_str!("../../../docs/rules/ZP701.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    if case.observed.spec.offload != Offload::Cpu {
        return Vec::new();
    }
    // Where one deviation was there before the copy, the copy is not what went wrong.
    let deviations = &case.deviations;
    let Some(first) = deviations.first().filter(|_| deviations.iter().all(|d| is_copy(case, d)))
    else {
        return Vec::new();
    };
    let mut finding = rule.deviation(
        first,
        "the gradient was right before it was copied to the host's memory, and what the optimizer \
         consumed there is not"
            .to_owned(),
    );
    if deviations.len() > 1 {
        finding.param = None;
    }
    vec![finding]
}

/// Whether all that led to what the optimizer consumed was read, and was right.
fn is_copy(case: &Case<'_>, deviation: &Deviation) -> bool {
    let example = &deviation.example;
    let is_source = |entry: &&Contribution| {
        (entry.step, entry.rank) == (example.step, example.rank) && entry.point == Point::BeforeStep
    };
    let mut sources = case.decoded.contributions.iter().filter(is_source).peekable();
    // Any other pattern is of what is done to a gradient, and not of which one is there.
    matches!(deviation.pattern, Pattern::Missing(_) | Pattern::Leftover)
        && deviation.point == Point::OptimizerInput
        && deviation.first.point == Point::OptimizerInput
        && sources.peek().is_some()
        && sources.all(|entry| entry.as_planned)
}
