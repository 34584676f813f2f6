//! ZP701: the optimizer's input in the host's memory differs from the gradient that was copied there.

use super::zp1xx_weights::scope;
use crate::case::Case;
use crate::deviation::{Deviation, Pattern};
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::spec::Offload;
use zprobe_model::trace::Point;
use zprobe_report::{Contribution, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP701"),
    name: "offload-copy",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP401", "ZP402"]),
    doc: include_str!("../../docs/ZP701.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.offload != Offload::Cpu {
        return Vec::new();
    }
    let message = "the gradient was right before it was copied to the host's memory, but the \
                   optimizer's input there is wrong";
    // If one deviation of a step existed before the copy, the copy is not at fault.
    let is_copied = |step: usize| {
        case.deviations
            .iter()
            .filter(|it| it.step == step)
            .all(|deviation| is_copy(case, deviation))
    };
    let sighting = |deviation: &Deviation| {
        let mut finding = rule.finding(message.to_owned());
        finding.evidence = deviation.facts().collect();
        // A copy does not depend on microbatches.
        let scope = Scope { gradients: Extent::All, ..scope(case, deviation) };
        Sighting::one_of(finding, scope)
    };
    let copied = case.deviations.iter().filter(|deviation| is_copied(deviation.step));
    copied.map(sighting).collect()
}

/// True if all buffers before the optimizer's input were read and were right.
fn is_copy(case: &Case<'_>, deviation: &Deviation) -> bool {
    let example = &deviation.example;
    let is_source = |entry: &&Contribution| {
        (entry.step, entry.rank) == (example.step, example.rank) && entry.point == Point::BeforeStep
    };
    let mut sources = case.decoded.contributions.iter().filter(is_source).peekable();
    // Any other pattern is about changes to a gradient, and not about which gradient is there.
    matches!(deviation.pattern, Pattern::Missing(_) | Pattern::Leftover)
        && deviation.point == Point::OptimizerInput
        && deviation.first.point == Point::OptimizerInput
        && sources.peek().is_some()
        && sources.all(|entry| entry.as_planned)
}
