//! ZP904: the digest of a buffer differs between the process group and the event channel.

use std::collections::{BTreeSet, HashSet};

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::trace::digest;
use zprobe_report::RuleCode;
use zprobe_report::words::counted;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP904"),
    name: "digests-disagree",
    crash: false,
    is_handed_on: true,
    explained_by: &[],
    doc: include_str!("../../../../docs/rules/ZP904.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let mut differing: Vec<(usize, usize)> = Vec::new();
    let mut seen: HashSet<(usize, *const String)> = HashSet::new();
    // Most ranks gathered the same list, which the trace stores once.
    let lists =
        observed.exchanges.gathered.iter().filter(|it| seen.insert((it.step, it.in_band.as_ptr())));
    for gathered in lists {
        for (source, in_band) in gathered.in_band.iter().enumerate() {
            let out_of_band = observed.exchanges.out_of_band.get(&(source, gathered.step));
            let key = (gathered.step, source);
            if out_of_band.is_some_and(|digest| digest != in_band) && !differing.contains(&key) {
                differing.push(key);
            }
        }
    }
    let recorded = observed.buffers.all.iter().filter(|buffer| buffer.payload.has_content());
    let damaged = recorded.filter(|buffer| {
        let intact = |bytes: Vec<u8>| digest(&bytes) == buffer.payload.digest;
        !buffer.payload.bytes().is_ok_and(intact)
    });
    let damaged: Vec<(usize, usize)> =
        damaged.map(|buffer| (buffer.step.unwrap_or(0), buffer.rank)).collect();
    let carried = "sent the other ranks different digests, over the process group, than those \
                   of the recorded buffers";
    let broken = "recorded buffers that do not match their own digests";
    [(differing, carried), (damaged, broken)]
        .into_iter()
        .filter_map(|(seen, what)| {
            seen.first()?;
            let ranks: BTreeSet<usize> = seen.iter().map(|&(_, rank)| rank).collect();
            let steps: BTreeSet<usize> = seen.iter().map(|&(step, _)| step).collect();
            let listed = |numbers: &BTreeSet<usize>| numbers.iter().copied().collect::<Vec<_>>();
            let mut finding = rule.finding(format!("{} {what}", counted("rank", &listed(&ranks))));
            finding.evidence.push(format!("seen in {}", counted("step", &listed(&steps))));
            let (steps, holders) = (Extent::Only(steps), Extent::Only(ranks));
            Some(Sighting::new(finding, Scope { steps, holders, ..Scope::default() }))
        })
        .collect()
}
