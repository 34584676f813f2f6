//! ZP501: a gradient buffer holds an infinity or a NaN that is not planned there.

use std::collections::BTreeSet;

use crate::case::Case;
use crate::infinity::{parts, planned, without_planned};
use crate::observed::Buffer;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use crate::wording::POISON;
use zprobe_model::trace::Point;
use zprobe_report::RuleCode;
use zprobe_report::words::{abridged, counted};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP501"),
    name: "not-finite",
    crash: false,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP502"]),
    doc: include_str!("../../docs/ZP501.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let mut infinite = case.observed.buffers.all.iter().filter_map(|buffer| {
        let names = not_finite(case, buffer)?;
        Some((buffer, names))
    });
    let Some((first, names)) = infinite.next() else { return Vec::new() };
    let mut finding =
        rule.finding(format!("elements of the {} are not finite", first.point.describe()));
    finding.microbatch = first.microbatch;
    if let [name] = &names[..] {
        finding.param = Some(name.clone());
    }
    let mut steps: BTreeSet<usize> = first.step.into_iter().collect();
    let mut ranks = vec![first.rank];
    let mut points: Vec<Point> = vec![first.point];
    for (buffer, _) in infinite {
        steps.extend(buffer.step);
        let same_moment = (buffer.step, buffer.microbatch, buffer.point)
            == (first.step, first.microbatch, first.point);
        if same_moment {
            ranks.push(buffer.rank);
        } else if !points.contains(&buffer.point) {
            points.push(buffer.point);
        }
    }
    if let ([rank], 2..) = (&ranks[..], case.observed.spec.world_size) {
        finding.rank = Some(*rank);
    }
    finding.evidence.push(format!("first on {}", counted("rank", &ranks)));
    if !names.is_empty() {
        finding.evidence.push(format!("parameters: {}", abridged(&names)));
    }
    let spread: Vec<&str> = points.iter().map(|point| point.describe()).collect();
    finding.evidence.push(format!("seen in: {}", spread.join(", ")));
    let has_nan = |values: Vec<f64>| values.iter().any(|value| value.is_nan());
    if case.observed.is_poisoned() && first.payload.values().is_ok_and(has_nan) {
        finding.evidence.push(POISON.to_owned());
    }
    if planned(&case.observed, &case.plan, first).is_some() {
        finding.evidence.push(
            "this run makes one gradient element infinite on purpose; an optimizer that skips overflows must not consume \
             that element"
                .to_owned(),
        );
    }
    // The spread of the infinity is not followed: it gets into sums, and through a norm into every parameter.
    let steps = if steps.is_empty() { Extent::All } else { steps.into_iter().collect() };
    vec![Sighting::new(finding, Scope { steps, ..Scope::default() })]
}

/// Returns the names of the parameters with elements that should be finite and are not; `None` if the buffer has no
/// such elements.
fn not_finite(case: &Case<'_>, buffer: &Buffer<'_>) -> Option<Vec<String>> {
    // The norm is not finite exactly if an element is not finite or its square overflows.
    if buffer.payload.norm.is_some() {
        return None;
    }
    let values = buffer.payload.values().ok()?;
    let parts = parts(&case.observed, &case.plan, buffer);
    if parts.is_empty() {
        // The layout of this buffer was not described by any rank.
        return values.iter().any(|value| !value.is_finite()).then(Vec::new);
    }
    let mut planned = planned(&case.observed, &case.plan, buffer);
    let consumed =
        matches!(buffer.point, Point::OptimizerInput | Point::MasterWeights | Point::Parameters);
    let spec = case.observed.spec;
    if spec.skips_overflows() && consumed {
        // An infinity is an overflow: the step should have been skipped.
        planned = None;
    }
    let (parts, _) = without_planned(parts, &values, planned);
    let mut names: Vec<String> = parts
        .into_iter()
        .filter(|part| {
            values[part.start..][..part.flat.len()].iter().any(|value| !value.is_finite())
        })
        .map(|part| case.observed.model.param_name(part.param))
        .collect();
    names.dedup();
    // The norm also covers elements between the samples, but a NaN in poisoned padding would look the same.
    let elsewhere = case.placement.recorded_share(buffer.rank, buffer.layout) < 1.0
        && planned.is_none()
        && !spec.poison_memory
        && values.iter().all(|value| value.is_finite());
    (!names.is_empty() || elsewhere).then_some(names)
}
