//! ZP402: the optimizer's input has gradients that belong to other elements.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::deviation::{Deviation, Pattern};
use crate::displacement::{Displaced, DisplacedContent, MOST_STEPS, find, is_again};
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
    doc: include_str!("../../../../docs/rules/ZP402.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let unexplained = |it: &&Deviation| it.pattern == Pattern::Unexplained;
    let mut left: Vec<&Deviation> = case.deviations.iter().filter(unexplained).collect();
    let mut sightings = Vec::new();
    while let Some(step) = left.iter().map(|it| it.step).min() {
        let here: Vec<_> = left.iter().filter(|it| it.step == step).map(|it| &it.params).collect();
        let (of_these, others): (Vec<_>, _) =
            left.iter().partition(|it| here.contains(&&it.params));
        left = others;
        // Several steps together reveal shorter pieces. If they have no displaced piece in common, the first step is
        // searched by itself.
        let mut steps: Vec<usize> = of_these.iter().map(|it| it.step).collect();
        steps.sort_unstable();
        steps.dedup();
        steps.truncate(MOST_STEPS);
        let mut displaced = find(case, &steps);
        if displaced.is_empty() && steps.len() > 1 {
            steps.truncate(1);
            displaced = find(case, &steps);
        }
        // A search is expensive. If it found nothing, the same parameters are not searched again. If it found pieces,
        // the other steps are only checked for the same pieces.
        if displaced.is_empty() {
            continue;
        }
        let mut again: BTreeMap<usize, bool> = steps.iter().map(|step| (*step, true)).collect();
        let mut is_again = |it: &&Deviation| {
            *again.entry(it.step).or_insert_with(|| is_again(case, it.step, &displaced))
        };
        let (same, different): (Vec<&Deviation>, Vec<_>) =
            of_these.into_iter().partition(&mut is_again);
        left.extend(different);
        let steps = same.into_iter().map(|it| it.step).collect();
        sightings.push(sighting(case, rule, &displaced, steps));
    }
    sightings
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

/// Describes a displaced piece: `rank 1: 128 elements, starting at embed.weight[0], hold the gradients that start at
/// layers.0.mlp.bias[3]`.
fn describe(case: &Case<'_>, piece: &Displaced) -> String {
    let name = |element: usize| {
        let owner = case.plan.params().iter().position(|p| p.range().contains(&element));
        owner.map_or_else(
            || "nothing".to_owned(),
            |param| {
                let offset = element - case.plan.params()[param].offset;
                format!("{}[{offset}]", case.observed.model.param_name(param))
            },
        )
    };
    let held = match piece.held {
        DisplacedContent::Sum | DisplacedContent::Added => String::new(),
        DisplacedContent::Own => format!(", only of rank {}", piece.rank),
        DisplacedContent::OwnDivided => {
            format!(", only of rank {}, divided by the number of ranks", piece.rank)
        }
    };
    let (place, content) = (name(piece.place), name(piece.content));
    let elements = format!("rank {}: {} elements from {place} on", piece.rank, piece.elements);
    if piece.held == DisplacedContent::Added {
        return format!("{elements} also contain the gradients from {content} on");
    }
    format!("{elements} hold the gradients from {content} on{held}")
}

fn counted_elements(count: u64) -> String {
    if count == 1 { "1 element".to_owned() } else { format!("{count} elements") }
}
