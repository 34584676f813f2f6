//! ZP802: ranks issued different collectives under the same number, or reduced different parameters with each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::deviation::Pattern;
use crate::displaced::DisplacedContent;
use crate::displacement::{describe, displacements};
use crate::observed::{BucketFlush, EnteredCollective};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::RuleCode;
use zprobe_report::words::{abridged, by_rank};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP802"),
    name: "collectives-differ",
    crash: false,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP502"]),
    doc: include_str!("../../docs/ZP802.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let sighting =
        collectives(case, rule).or_else(|| buckets(case, rule)).or_else(|| shares(case, rule));
    sighting.into_iter().collect()
}

/// Reports the first collective number under which ranks issued different collectives.
fn collectives(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    // Ranks that compare before they issue a collective report a mismatch themselves (ZP801).
    let issued = |collective: &&EnteredCollective<'_>| {
        !case.observed.exchanges.mismatches.contains_key(&collective.sequence)
    };
    // A collective that a rank did not reach is no difference: the rank may have died, or the trace may have ended.
    let mut entered: BTreeMap<u64, Vec<(usize, EnteredCollective<'_>)>> = BTreeMap::new();
    for (rank, collectives) in case.observed.exchanges.entered.iter().enumerate() {
        for &collective in collectives.iter().filter(issued) {
            entered.entry(collective.sequence).or_default().push((rank, collective));
        }
    }
    let differ = |ranks: &[(usize, EnteredCollective<'_>)]| {
        ranks.iter().any(|(_, collective)| *collective != ranks[0].1)
    };
    let (sequence, ranks) = entered.into_iter().find(|(_, ranks)| differ(ranks))?;
    let mut finding = rule.finding(format!(
        "the ranks issued different collectives as number {sequence}: they received each \
         other's data, or the run ends here"
    ));
    // A single rank that disagrees with all others is at fault; of two ranks, neither is known to be at fault.
    let alone =
        |own: &EnteredCollective<'_>| ranks.iter().filter(|(_, other)| other == own).count() == 1;
    let odd: Vec<usize> =
        ranks.iter().filter(|(_, own)| alone(own)).map(|(rank, _)| *rank).collect();
    if let ([rank], 3..) = (&odd[..], ranks.len()) {
        finding.rank = Some(*rank);
    }
    finding.evidence =
        by_rank(ranks.iter().map(|(rank, EnteredCollective { op, dtype, numel, .. })| {
            (*rank, format!("{op} of {numel} {dtype}"))
        }));
    Some(Sighting::new(finding, Scope::default()))
}

/// Reports the first bucket that ranks flushed with different parameters, or in different order, in a step with an
/// unexplained gradient. Some engines sort the parameters in a bucket, so that a different order by itself is no
/// mistake.
fn buckets(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let unexplained = case.deviations.iter().filter(|it| it.pattern == Pattern::Unexplained);
    let unexplained: BTreeSet<usize> = unexplained.map(|it| it.step).collect();
    let mut flushed: BTreeMap<_, Vec<&BucketFlush<'_>>> = BTreeMap::new();
    for flush in case.observed.hooks.flushes.iter().filter(|it| unexplained.contains(&it.step)) {
        flushed.entry((flush.step, flush.microbatch, flush.flush)).or_default().push(flush);
    }
    flushed.retain(|_, ranks| ranks.iter().any(|flush| flush.params != ranks[0].params));
    let steps = flushed.keys().map(|(step, ..)| *step).collect();
    let ((step, microbatch, bucket), mut ranks) = flushed.pop_first()?;
    ranks.sort_by_key(|flush| flush.rank);
    let mut finding = rule.finding(
        "the ranks reduced different parameters with each other: their buckets hold different parameters, or the \
         same in another order"
            .to_owned(),
    );
    (finding.step, finding.microbatch) = (Some(step), Some(microbatch));
    finding.bucket = Some(bucket);
    let name = |&param: &usize| case.observed.model.param_name(param);
    finding.evidence =
        by_rank(ranks.iter().map(|flush| {
            (flush.rank, abridged(&flush.params.iter().map(name).collect::<Vec<_>>()))
        }));
    Some(Sighting::new(finding, Scope { steps, ..Scope::default() }))
}

/// Reports that the sum over the ranks joined gradients of different elements: one rank's share is displaced, and the
/// shares of the other ranks are in place.
fn shares(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let displacement = displacements(case).iter().find(|it| it.is_of_shares())?;
    let ranks = displacement.pieces.iter().filter_map(|piece| match piece.held {
        DisplacedContent::ShareOf(rank) => Some(rank),
        _ => None,
    });
    let ranks: Vec<usize> = ranks.collect::<BTreeSet<_>>().into_iter().collect();
    let mut finding = rule.finding(
        "the ranks reduced different elements with each other: their buckets hold different parameters, or the same \
         in another order"
            .to_owned(),
    );
    finding.step = displacement.steps.first().copied();
    // A single rank whose share is displaced is at fault; of two ranks, neither is known to be at fault.
    if let ([rank], 3..) = (&ranks[..], case.observed.spec.world_size) {
        finding.rank = Some(*rank);
        finding.message = format!(
            "rank {rank} reduced its gradients with those of other elements: its buckets hold other parameters than \
             those of the other ranks, or the same in another order"
        );
    }
    let lines: Vec<String> =
        displacement.pieces.iter().map(|piece| describe(case, piece)).collect();
    finding.evidence.push(abridged(&lines));
    Some(Sighting::new(finding, Scope { steps: displacement.steps.clone(), ..Scope::default() }))
}
