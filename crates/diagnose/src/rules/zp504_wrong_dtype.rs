//! ZP504: gradients are added up, or communicated between ranks, in fewer bits than the run requested.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::spec::{Dtype, Point};
use zprobe_model::trace::CollectiveOp;
use zprobe_report::{Finding, Over, Precision, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP504"),
    name: "wrong-dtype",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP504.md"),
    check,
};

/// The operations that carry gradients, if they carry more than one number.
const REDUCTIONS: [CollectiveOp; 3] =
    [CollectiveOp::AllReduce, CollectiveOp::Reduce, CollectiveOp::ReduceScatter];

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if let Some(finding) = by_rounding(case, rule) {
        return vec![Sighting::new(finding, Scope::default())];
    }
    // The settings of a real engine do not fully determine its dtypes.
    if !case.observed.spec.engine().traits().follows_spec {
        return Vec::new();
    }
    let found = [on_the_wire(case, rule), in_the_accumulator(case, rule)].into_iter().flatten();
    found.map(|finding| Sighting::new(finding, Scope::default())).collect()
}

/// Reports the first sum with fewer bits than requested.
fn by_rounding(case: &Case<'_>, rule: &Rule) -> Option<Finding> {
    let (first, over) = case.decoded.precision.iter().find_map(|it| Some((it, it.narrower?)))?;
    let Precision { point, asked, as_exact_as, relative_error, .. } = first;
    let what = match over {
        Over::Microbatches => "microbatches are added up",
        Over::Ranks => "gradients of the ranks are added up",
    };
    let mut finding =
        rule.finding(format!("{what} with the precision of {as_exact_as} instead of {asked}"));
    finding.evidence.push(format!(
        "the {} is off by 2^{:.1} of its norm from the sum in fp64; all weights are whole, and a sum in \
         {as_exact_as} is off in the same elements by the same amounts",
        point.describe(),
        relative_error.log2(),
    ));
    Some(finding)
}

fn on_the_wire(case: &Case<'_>, rule: &Rule) -> Option<Finding> {
    let asked = case.observed.spec.comm_dtype?;
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for collective in case.observed.exchanges.entered.iter().flatten() {
        let is_narrow = |name: &str| {
            Dtype::ALL.iter().any(|dtype| dtype.name() == name && dtype.is_narrower_than(asked))
        };
        if REDUCTIONS.contains(&collective.op)
            && collective.numel > 1
            && is_narrow(collective.dtype)
        {
            *seen.entry(collective.dtype).or_default() += 1;
        }
    }
    let (dtype, count) = seen.into_iter().next()?;
    let mut finding =
        rule.finding(format!("gradients are reduced over the ranks in {dtype} instead of {asked}"));
    finding.evidence.push(format!("{count} reductions in {dtype}; --comm-dtype is {asked}"));
    Some(finding)
}

fn in_the_accumulator(case: &Case<'_>, rule: &Rule) -> Option<Finding> {
    let asked = case.observed.spec.grad_accum_dtype;
    let buffer = case.observed.buffers.all.iter().find(|buffer| {
        matches!(buffer.point, Point::Accumulator | Point::Reduced)
            && buffer.payload.dtype.is_narrower_than(asked)
    })?;
    let dtype = buffer.payload.dtype;
    let mut finding =
        rule.finding(format!("microbatches are added up in {dtype} instead of {asked}"));
    (finding.step, finding.microbatch) = (buffer.step, buffer.microbatch);
    finding
        .evidence
        .push(format!("the buffer at {} is {dtype}; --grad-accum-dtype is {asked}", buffer.point));
    Some(finding)
}
