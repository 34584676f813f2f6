//! ZP116: ranks train on the same samples.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::replicas::unlike;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::spec::{Scale, Weighting};
use zprobe_model::trace::LossWeighed;
use zprobe_report::RuleCode;
use zprobe_report::words::{amount, counted};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP116"),
    name: "same-samples",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP116.md"),
    check,
};

/// The fingerprint of a microbatch's samples: (step, bits of the digest of its input, leading bits of the loss).
type SampleFingerprint = (usize, u64, u32);

/// The number of trailing bits of a loss that are not compared, because sums of atomic additions differ between runs.
const ROUNDED: u32 = 8;

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let spec = case.observed.spec;
    let Some(script) = spec.script() else { return Vec::new() };
    let demands_nothing = script.weighting == Weighting::Any && script.scale == Scale::Any;
    // Ranks that split a model among them get the same samples on purpose.
    let splits = case.observed.replicas() != spec.world_size
        || case.observed.model.other_rank().is_some()
        || !unlike(&case.observed, None).is_empty();
    if demands_nothing || splits {
        return Vec::new();
    }
    let of_ranks: Option<BTreeMap<usize, Vec<SampleFingerprint>>> = (0..spec.world_size)
        .map(|rank| Some((rank, microbatches(case, rank).filter(|it| differ(it))?)))
        .collect();
    let mut same: BTreeMap<Vec<SampleFingerprint>, Vec<usize>> = BTreeMap::new();
    for (rank, seen) in of_ranks.unwrap_or_default() {
        same.entry(seen).or_default().push(rank);
    }
    let found = same.into_iter().filter(|(_, ranks)| ranks.len() > 1);
    let found = found.min_by(|(_, a), (_, b)| a.cmp(b));
    found.map(|(seen, ranks)| sighting(case, rule, &ranks, seen.len())).into_iter().collect()
}

/// Returns the fingerprints of a rank's microbatches, in order; `None` if the samples of some microbatches were not
/// seen.
fn microbatches(case: &Case<'_>, rank: usize) -> Option<Vec<SampleFingerprint>> {
    let losses = case.observed.script.losses.iter();
    let of_rank = losses.filter(|((_, of), _)| *of == rank);
    let seen = |step: usize, loss: &LossWeighed| {
        Some((step, loss.input?.to_bits(), (loss.value? as f32).to_bits() >> ROUNDED))
    };
    of_rank.flat_map(|(&(step, _), of)| of.iter().map(move |loss| seen(step, loss))).collect()
}

/// False if all microbatches have the same input, as for a model that memorises one batch, or the same loss, as for a
/// loss that is always 0.
fn differ(seen: &[SampleFingerprint]) -> bool {
    let Some((_, input, value)) = seen.first() else { return false };
    seen.iter().any(|it| it.1 != *input) && seen.iter().any(|it| it.2 != *value)
}

fn sighting(case: &Case<'_>, rule: &Rule, ranks: &[usize], microbatches: usize) -> Sighting {
    let world = case.observed.spec.world_size;
    let message = format!(
        "{} train on the same samples: input and loss are the same in all {}",
        counted("rank", ranks),
        amount(microbatches, "microbatch"),
    );
    let mut finding = rule.finding(message);
    let mut losses = case.observed.script.losses.values().flatten();
    finding
        .evidence
        .extend(losses.find_map(|loss| loss.at.as_ref()).map(|at| format!("backward at {at}")));
    let holders = Extent::of(ranks.iter().copied(), world);
    Sighting::new(finding, Scope { holders, ..Scope::default() })
}
