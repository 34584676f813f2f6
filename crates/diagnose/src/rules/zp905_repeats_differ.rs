//! ZP905: repeats of the same run do not have the same bits.

use crate::case::Case;
use crate::race::{FirstDifference, ValueKind};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::spec::Model;
use zprobe_model::trace::Point;
use zprobe_report::words::counted;
use zprobe_report::{RuleCode, Severity};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP905"),
    name: "repeats-differ",
    crash: false,
    is_handed_on: true,
    explained_by: &[],
    doc: include_str!("../../docs/ZP905.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let Some(first) = case.repeats else { return Vec::new() };
    let moment = &first.moment;
    let mut finding = rule.finding(format!(
        "{} of {} repeats of the same run are not bit-identical to repeat 0, first in the {}",
        first.repeats.len(),
        first.seen,
        moment.what.describe(),
    ));
    // Sums of codes are exact in any order, so that the order of a sum explains no difference.
    if case.observed.spec.model != Model::Coded {
        finding.severity = Severity::Warning;
    }
    finding.step = moment.step;
    finding.microbatch = moment.microbatch();
    finding.rank = (first.ranks.len() == 1).then_some(moment.rank);
    finding.param = first.only_param().map(|param| case.observed.model.param_name(param));
    finding.bucket = first.only_param().and_then(|param| bucket(case, first, param));
    finding.evidence.push(format!("unlike repeat 0: {}", counted("repeat", &first.repeats)));
    if first.ranks.len() > 1 {
        finding.evidence.push(format!("differs on {}", counted("rank", &first.ranks)));
    }
    finding.evidence.extend(first.facts(&case.observed));
    let (later, of) = first.later;
    finding.evidence.push(format!("{later} later points differ too, of {of} points in the run"));
    vec![Sighting::new(finding, Scope::default())]
}

/// Returns the flush that reduced the parameter over the ranks before this moment; `None` if it is not unique.
fn bucket(case: &Case<'_>, first: &FirstDifference, param: usize) -> Option<usize> {
    let moment = &first.moment;
    let reduced = [Point::Reduced, Point::BeforeStep, Point::OptimizerInput];
    let is_behind = reduced.iter().any(|point| moment.what == ValueKind::Gradient(*point));
    let mut flushes = case.observed.hooks.flushes.iter().filter(|flush| {
        is_behind && Some(flush.step) == moment.step && flush.params.contains(&param)
    });
    let flush = flushes.next()?;
    // If a parameter is reduced in every microbatch, no single flush is responsible.
    flushes.all(|other| other.flush == flush.flush).then_some(flush.flush)
}
