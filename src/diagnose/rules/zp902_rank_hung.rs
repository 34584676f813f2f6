//! ZP902: a rank went silent before its work was done.

use super::super::Case;
use super::super::observed::Process;
use super::super::summary::last_words;
use super::{Rule, by_rank, counted};
use crate::report::{Consequence, Finding};
use crate::trace::Event;

pub(super) const RULE: Rule = Rule {
    code: "ZP902",
    name: "rank-hung",
    crash: true,
    explained_by: &["ZP502", "ZP802", "ZP903"],
    doc: include_str!("../../../docs/rules/ZP902.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let Some((silent, timeout_s)) = case.observed.timed_out else { return Vec::new() };
    let processes: Vec<(usize, &Process<'_>)> = silent
        .iter()
        .filter_map(|&rank| Some((rank, case.observed.processes.get(rank)?)))
        .collect();
    let waiting =
        |process: &Process<'_>| matches!(process.last, Some(Event::CollectiveEntered { .. }));
    let reached = |process: &Process<'_>| process.collectives.last().map(|last| last.sequence);
    // Who waits in a collective waits for somebody; if all do, for whoever is furthest behind.
    let all_wait = processes.iter().all(|(_, process)| waiting(process));
    let behind = processes.iter().map(|(_, process)| reached(process)).min().flatten();
    let (hung, waiters): (Vec<_>, Vec<_>) = processes.into_iter().partition(|(_, process)| {
        if all_wait { reached(process) == behind } else { !waiting(process) }
    });
    let ranks: Vec<usize> = hung.iter().map(|(rank, _)| *rank).collect();
    let mut finding = rule.finding(match ranks[..] {
        // The place says which.
        [_] => format!("hung: no event for {timeout_s} s"),
        _ => format!("{} hung: no event for {timeout_s} s", counted("rank", &ranks)),
    });
    if let [rank] = ranks[..] {
        finding.rank = Some(rank);
    }
    let mut last = Vec::new();
    for (rank, process) in hung {
        last.push((rank, format!("last: {}", last_words(process))));
        if let Some(Event::PhaseEntered { step, microbatch, .. }) = process.last_phase {
            finding.step = Some(*step);
            finding.microbatch = Some(*microbatch);
        }
    }
    finding.evidence.extend(by_rank(last));
    let waited =
        waiters.into_iter().map(|(rank, it)| (rank, format!("waited: {}", last_words(it))));
    for message in by_rank(waited) {
        finding.consequences.push(Consequence { code: rule.code.to_owned(), message });
    }
    vec![finding]
}
