//! ZP402: the optimizer holds gradients that belong to other elements.

use super::super::Case;
use super::super::deviation::Pattern;
use super::super::displacement::{Displaced, find};
use super::{Rule, abridged, counted};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP402",
    name: "slice-displaced",
    crash: false,
    explained_by: &["ZP401", "ZP801"],
    doc: include_str!("../../../docs/rules/ZP402.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let unexplained: Vec<_> =
        case.deviations.iter().filter(|it| it.pattern == Pattern::Unexplained).collect();
    let Some(step) = unexplained.iter().flat_map(|it| it.steps.first()).min().copied() else {
        return Vec::new();
    };
    let displaced = find(case, step);
    let Some(first) = displaced.first() else { return Vec::new() };
    let one_distance = displaced.iter().all(|piece| piece.distance() == first.distance());
    let message = if one_distance {
        format!(
            "the optimizer's gradients lie {} too far {}",
            counted_elements(first.distance().unsigned_abs()),
            if first.distance() > 0 { "to the front" } else { "to the back" },
        )
    } else {
        "the optimizer's gradients belong to other elements: slices are at the wrong place".into()
    };
    let mut finding = rule.finding(message);
    finding.step = Some(step);
    let mut ranks: Vec<usize> = displaced.iter().map(|piece| piece.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    if let ([rank], 2..) = (&ranks[..], case.observed.spec.world_size) {
        finding.rank = Some(*rank);
    }
    let lines: Vec<String> = displaced.iter().map(|piece| describe(case, piece)).collect();
    finding.evidence.push(abridged(&lines));
    finding.evidence.push(format!("seen on {}", counted("rank", &ranks)));
    vec![finding]
}

/// `rank 1: embed.weight[0..128] holds what belongs to layers.0.mlp.bias[3..]`
fn describe(case: &Case<'_>, piece: &Displaced) -> String {
    let name = |element: usize| {
        let owner = case.plan.params().iter().position(|p| p.range().contains(&element));
        owner.map_or_else(
            || "nothing".to_owned(),
            |param| {
                let offset = element - case.plan.params()[param].offset;
                format!("{}[{offset}]", case.observed.param_name(param))
            },
        )
    };
    format!(
        "rank {}: {} elements from {} on are those from {} on",
        piece.rank,
        piece.elements,
        name(piece.place),
        name(piece.content),
    )
}

fn counted_elements(count: u64) -> String {
    if count == 1 { "1 element".to_owned() } else { format!("{count} elements") }
}
