//! ZP904: a buffer's digest came over the process group differently than over the event channel.

use std::collections::BTreeSet;

use super::super::Case;
use super::{Rule, counted};
use crate::report::Finding;
use crate::trace::digest;

pub(super) const RULE: Rule = Rule {
    code: "ZP904",
    name: "digests-disagree",
    crash: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP904.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let observed = &case.observed;
    let mut differing: Vec<(usize, usize)> = Vec::new();
    for gathered in &observed.gathered {
        for (source, in_band) in gathered.in_band.iter().enumerate() {
            let out_of_band = observed.digests.get(&(source, gathered.step));
            let key = (gathered.step, source);
            if out_of_band.is_some_and(|digest| digest != in_band) && !differing.contains(&key) {
                differing.push(key);
            }
        }
    }
    let recorded = observed.buffers.iter().filter(|buffer| buffer.payload.has_content());
    let damaged = recorded.filter(|buffer| {
        let intact = |bytes: Vec<u8>| digest(&bytes) == buffer.payload.digest;
        !buffer.payload.bytes().is_ok_and(intact)
    });
    let damaged: Vec<(usize, usize)> =
        damaged.map(|buffer| (buffer.step.unwrap_or(0), buffer.rank)).collect();
    let carried = "told the other ranks another digest of its buffers, over the process group, than \
                   of those that it recorded";
    let broken = "recorded buffers that do not match their own digests";
    [(differing, carried), (damaged, broken)]
        .into_iter()
        .filter_map(|(seen, what)| {
            let &(step, rank) = seen.first()?;
            let ranks: BTreeSet<usize> = seen.iter().map(|&(_, rank)| rank).collect();
            let ranks: Vec<usize> = ranks.into_iter().collect();
            let mut finding = rule.finding(format!("{} {what}", counted("rank", &ranks)));
            finding.step = Some(step);
            finding.rank = (ranks.len() == 1).then_some(rank);
            let steps: BTreeSet<usize> = seen.iter().map(|&(step, _)| step).collect();
            let steps: Vec<usize> = steps.into_iter().collect();
            finding.evidence.push(format!("seen in {}", counted("step", &steps)));
            Some(finding)
        })
        .collect()
}
