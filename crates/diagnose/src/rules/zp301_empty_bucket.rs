//! ZP301: a bucket was flushed without any elements.

use crate::case::Case;
use crate::observed::BucketFlush;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_report::{RuleCode, Severity};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP301"),
    name: "empty-bucket",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP201"]),
    doc: include_str!("../../docs/ZP301.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let flushes = &case.observed.hooks.flushes;
    // The last flush of a backward may be empty because earlier flushes took all elements.
    let carried = |empty: &BucketFlush<'_>| {
        flushes.iter().any(|flush| {
            let same_backward = (flush.rank, flush.step, flush.microbatch)
                == (empty.rank, empty.step, empty.microbatch);
            same_backward && flush.elements > 0
        })
    };
    // If the loss reaches no parameter there is nothing to flush, unless the engine failed because of that.
    let has_reason = |empty: &BucketFlush<'_>| {
        let mut backwards =
            case.observed.hooks.backwards_of(empty.step, empty.microbatch, empty.rank).peekable();
        let was_seen = backwards.peek().is_some();
        let failed = case.observed.processes.ranks[empty.rank].failure.is_some();
        was_seen && backwards.all(|(_, backward)| backward.reached.is_empty()) && !failed
    };
    let empty: Vec<_> = flushes
        .iter()
        .filter(|flush| flush.elements == 0 && !carried(flush) && !has_reason(flush))
        .collect();
    let Some(first) = empty.first() else { return Vec::new() };
    let mut finding = rule.finding(format!(
        "an IPG bucket was flushed empty ({}): nothing had been put into it",
        first.reason,
    ));
    finding.severity = Severity::Warning;
    finding.microbatch = Some(first.microbatch);
    finding.bucket = Some(first.flush);
    let ranks = Extent::of(empty.iter().map(|flush| flush.rank), case.observed.spec.world_size);
    finding.rank = ranks.only().copied();
    finding.evidence.push(format!(
        "{} of {} flushes were empty, the first at step {}, microbatch {} on rank {}",
        empty.len(),
        flushes.len(),
        first.step,
        first.microbatch,
        first.rank,
    ));
    let scope = Scope {
        steps: empty.iter().map(|flush| flush.step).collect(),
        gradients: empty.iter().map(|flush| (flush.rank, flush.microbatch)).collect(),
        ..Scope::default()
    };
    vec![Sighting::new(finding, scope)]
}
