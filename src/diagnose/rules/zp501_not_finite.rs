//! ZP501: a gradient is infinite or not a number.

use super::super::Case;
use super::Rule;
use crate::report::Finding;
use crate::report::words::counted;
use crate::trace::Point;

pub(super) const RULE: Rule = Rule {
    code: "ZP501",
    name: "not-finite",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP501.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    // The norm is not finite exactly if an element is not, or if its square overflows.
    let mut infinite = case.observed.buffers.iter().filter(|buffer| {
        let values = || buffer.payload.values().unwrap_or_default();
        buffer.payload.norm.is_none() && values().iter().any(|value| !value.is_finite())
    });
    let Some(first) = infinite.next() else { return Vec::new() };
    let mut finding =
        rule.finding(format!("the {} holds elements that are not finite", first.point.describe()));
    (finding.step, finding.microbatch) = (first.step, first.microbatch);
    let mut ranks = vec![first.rank];
    let mut points: Vec<Point> = vec![first.point];
    for buffer in infinite {
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
    let spread: Vec<&str> = points.iter().map(|point| point.describe()).collect();
    finding.evidence.push(format!("seen in: {}", spread.join(", ")));
    vec![finding]
}
