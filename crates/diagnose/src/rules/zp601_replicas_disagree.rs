//! ZP601: ranks hold different bits where they must hold the same bits.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::observed::Buffer;
use crate::replicas::{MUST_AGREE, unlike};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::trace::{LayoutName, Point};
use zprobe_report::words::abridged;
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP601"),
    name: "replicas-disagree",
    crash: false,
    is_handed_on: true,
    // A gradient that is wrong in the same way everywhere leaves the ranks in agreement. If ranks disagree about a
    // wrong gradient, the bug that made it wrong is the reason.
    explained_by: &RuleCode::all([
        "ZP101", "ZP102", "ZP103", "ZP104", "ZP105", "ZP106", "ZP107", "ZP401", "ZP201", "ZP501",
        "ZP502", "ZP611", "ZP602", "ZP603", "ZP606", "ZP607", "ZP608",
    ]),
    doc: include_str!("../../docs/ZP601.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.is_apart {
        return Vec::new();
    }
    let steps = case.observed.spec.recorded_steps();
    let mut found: Vec<Sighting> = steps.filter_map(|step| in_step(case, rule, step)).collect();
    found.extend(of_script(case, rule));
    found
}

/// Reports the first moment at which ranks of a script have different values of a parameter.
fn of_script(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let moments = case.observed.updates.digests.keys().map(|(step, _)| *step);
    let moments: BTreeSet<Option<usize>> = moments.collect();
    let (after, params) = moments
        .into_iter()
        .map(|after| (after, unlike(&case.observed, after)))
        .find(|(_, params)| !params.is_empty())?;
    let names: Vec<String> =
        params.iter().map(|param| case.observed.model.param_name(*param)).collect();
    let names = abridged(&names);
    let finding = match after {
        None => rule.finding(format!(
            "ranks began with different values of {names}, whose gradients they share: parameters were never broadcast"
        )),
        Some(step) => Finding {
            step: Some(step),
            ..rule.finding(format!("after step {step} ranks have different values of {names}"))
        },
    };
    // The first step has no weights that could explain the difference; later steps have them.
    let params = params.into_iter().collect();
    Some(Sighting::new(finding, Scope { params, ..Scope::default() }))
}

/// Reports the first disagreement in a step.
fn in_step(case: &Case<'_>, rule: &Rule, step: usize) -> Option<Sighting> {
    // A script may reduce gradients after its last backward, or after the part of its engine.
    let is_script = case.observed.spec.script().is_some();
    let may_differ = |point: &Point| matches!(point, Point::Reduced | Point::BeforeStep);
    let points = MUST_AGREE.iter().filter(|point| !is_script || !may_differ(point));
    let mut disagreements = points.filter_map(|&point| disagreement(case, point, step));
    let (first, other) = disagreements.next()?;
    let mut finding = rule.finding(format!(
        "ranks {} and {} hold different bits in the {} of step {step}",
        first.rank,
        other.rank,
        first.point.describe(),
    ));
    for buffer in [first, other] {
        finding.evidence.push(format!(
            "rank {}: digest {}, norm {}",
            buffer.rank,
            buffer.payload.digest,
            buffer.payload.norm.map_or("not finite".to_owned(), |norm| norm.to_string()),
        ));
    }
    finding.evidence.extend(disagreements.map(|(first, _)| {
        format!("the ranks also differ in the {} of step {step}", first.point.describe())
    }));
    Some(Sighting::one_of(finding, Scope::step(step)))
}

fn disagreement<'a>(
    case: &'a Case<'_>,
    point: Point,
    step: usize,
) -> Option<(&'a Buffer<'a>, &'a Buffer<'a>)> {
    // The key is the first rank with the same elements, the microbatch, and the index of the buffer on its rank.
    let mut first_of: BTreeMap<(Option<usize>, Option<usize>, usize), &Buffer<'_>> =
        BTreeMap::new();
    let mut seen: BTreeMap<(Option<usize>, usize), usize> = BTreeMap::new();
    for buffer in case.observed.buffers.at(point, step) {
        let replica = match buffer.layout {
            LayoutName::Full => case.observed.model.first_with_same_params(buffer.rank),
            LayoutName::Partition => match case.placement.first_replica(buffer.rank) {
                None => continue,
                first => first,
            },
        };
        let number = seen.entry((buffer.microbatch, buffer.rank)).or_default();
        let first = *first_of.entry((replica, buffer.microbatch, *number)).or_insert(buffer);
        *number += 1;
        // The norm covers all elements, including those that were not recorded.
        let norm = |buffer: &Buffer<'_>| buffer.payload.norm.map(f64::to_bits);
        let sampled = case.placement.recorded_share(buffer.rank, buffer.layout) < 1.0;
        if buffer.payload.digest != first.payload.digest || sampled && norm(buffer) != norm(first) {
            return Some((first, buffer));
        }
    }
    None
}
