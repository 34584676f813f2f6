//! ZP302: buckets do not hold what they report, or are flushed far more often than they fill.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::observed::BucketFlush;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_report::{RuleCode, Severity};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP302"),
    name: "bucket-misfilled",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP201", "ZP202", "ZP301"]),
    doc: include_str!("../../docs/ZP302.md"),
    check,
};

/// The factor by which the flushes of a backward may exceed the number of its full buckets. Chosen: an engine that
/// flushes buckets half full flushes twice as often.
const FAR_MORE: usize = 3;

/// The number of flushes that a backward may always have in addition to those of its full buckets.
const A_FEW: usize = 4;

/// The judgement of a flush; true if the flush is wrong.
type IsWrong<'a> = &'a dyn Fn(&BucketFlush<'_>) -> bool;

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let size = |flush: &BucketFlush<'_>| {
        let numels = flush.params.iter().map(|&param| Some(case.plan.params().get(param)?.numel()));
        numels.sum::<Option<usize>>()
    };
    let is_full = |flush: &BucketFlush<'_>| flush.elements > 0;
    let unnamed = |flush: &BucketFlush<'_>| flush.params.is_empty() && is_full(flush);
    let miscounted = |flush: &BucketFlush<'_>| {
        !flush.params.is_empty() && size(flush).is_some_and(|size| size != flush.elements)
    };
    let overfull =
        |flush: &BucketFlush<'_>| flush.params.len() > 1 && flush.elements > flush.capacity;
    let rows: [(&str, IsWrong<'_>); 3] = [
        ("was flushed with elements of no parameter", &unnamed),
        ("counts a different number of elements than its parameters have", &miscounted),
        ("of several parameters held more elements than its capacity", &overfull),
    ];
    let flushes = &case.observed.hooks.flushes;
    let wrong = rows.into_iter().find_map(|(what, is_wrong)| {
        let wrong: Vec<_> = flushes.iter().filter(|flush| is_wrong(flush)).collect();
        (!wrong.is_empty()).then_some((what, wrong))
    });
    if let Some((what, wrong)) = wrong {
        return vec![sighting(case, rule, &format!("an IPG bucket {what}"), &wrong)];
    }
    let often = flushed_too_often(case);
    let Some((first, needed)) = often.first() else { return Vec::new() };
    let what = format!(
        "IPG buckets were flushed {} times in a backward whose gradients fill only {needed}",
        first.len()
    );
    let all: Vec<_> = often.iter().flat_map(|(flushes, _)| flushes.iter().copied()).collect();
    vec![sighting(case, rule, &what, &all)]
}

/// Returns the flushes of each backward with far more flushes than its gradients need, and the needed number.
fn flushed_too_often<'a>(case: &'a Case<'_>) -> Vec<(Vec<&'a BucketFlush<'a>>, usize)> {
    let mut backwards: BTreeMap<(usize, usize, usize), Vec<&BucketFlush<'_>>> = BTreeMap::new();
    for flush in case.observed.hooks.flushes.iter().filter(|flush| flush.elements > 0) {
        backwards.entry((flush.step, flush.microbatch, flush.rank)).or_default().push(flush);
    }
    let often = backwards.into_values().filter_map(|flushes| {
        let (mut needed, mut held) = (1, 0);
        let capacity = flushes.first()?.capacity;
        for &param in flushes.iter().flat_map(|flush| flush.params) {
            let numel = case.plan.params().get(param)?.numel();
            if held > 0 && held + numel > capacity {
                (needed, held) = (needed + 1, 0);
            }
            held += numel;
        }
        (flushes.len() >= FAR_MORE * needed && flushes.len() > needed + A_FEW)
            .then_some((flushes, needed))
    });
    often.collect()
}

fn sighting(case: &Case<'_>, rule: &Rule, what: &str, wrong: &[&BucketFlush<'_>]) -> Sighting {
    let mut finding = rule.finding(what.to_owned());
    finding.severity = Severity::Warning;
    let ranks = Extent::of(wrong.iter().map(|flush| flush.rank), case.observed.spec.world_size);
    finding.rank = ranks.only().copied();
    if let Some(first) = wrong.first() {
        finding.microbatch = Some(first.microbatch);
        finding.bucket = Some(first.flush);
        finding.evidence.push(format!(
            "{} of {} flushes, the first at step {}, microbatch {} on rank {}: {} elements of {}, {} parameters",
            wrong.len(),
            case.observed.hooks.flushes.len(),
            first.step,
            first.microbatch,
            first.rank,
            first.elements,
            first.capacity,
            first.params.len(),
        ));
    }
    let scope = Scope {
        steps: wrong.iter().map(|flush| flush.step).collect(),
        gradients: wrong.iter().map(|flush| (flush.rank, flush.microbatch)).collect(),
        ..Scope::default()
    };
    Sighting::new(finding, scope)
}
