//! ZP402: the optimizer's input has gradients that belong to other elements.

use crate::case::Case;
use crate::displaced::{Displaced, DisplacedContent};
use crate::displacement::{describe, displacements};
use crate::rule::{Merge, Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_report::RuleCode;
use zprobe_report::words::{abridged, counted};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP402"),
    name: "slice-displaced",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP401", "ZP605", "ZP801"]),
    doc: include_str!("../../docs/ZP402.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let whole = displacements(case).iter().filter(|it| !it.is_of_shares());
    whole.map(|it| sighting(case, rule, &it.pieces, it.steps.clone())).collect()
}

/// Reports pieces that are displaced in the same way in these steps.
fn sighting(
    case: &Case<'_>,
    rule: &Rule,
    displaced: &[Displaced],
    steps: Extent<usize>,
) -> Sighting {
    let distance: Extent<i64> = displaced.iter().map(Displaced::distance).collect();
    let distance = distance.only().copied();
    let message = if displaced.iter().all(|piece| piece.held == DisplacedContent::Added) {
        "gradients of other elements are added to the optimizer's gradients: slices overlap".into()
    } else if let Some(distance) = distance {
        format!(
            "the optimizer's gradients lie {} too far {}",
            counted_elements(distance.unsigned_abs()),
            if distance > 0 { "to the front" } else { "to the back" },
        )
    } else {
        "the optimizer's gradients belong to other elements: slices are in the wrong place".into()
    };
    let mut finding = rule.finding(message);
    let mut ranks: Vec<usize> = displaced.iter().map(|piece| piece.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let of = Extent::of(ranks.iter().copied(), case.observed.spec.world_size);
    finding.rank = of.only().copied();
    let lines: Vec<String> = displaced.iter().map(|piece| describe(case, piece)).collect();
    finding.evidence.push(abridged(&lines));
    finding.evidence.push(format!("seen on {}", counted("rank", &ranks)));
    // In addition to the pieces that are long enough to be found, shorter ones are displaced, so that any parameter
    // and rank may be affected.
    let scope = Scope { steps, ..Scope::default() };
    Sighting { finding, scope, merge: Merge::Distance(distance) }
}

fn counted_elements(count: u64) -> String {
    if count == 1 { "1 element".to_owned() } else { format!("{count} elements") }
}
