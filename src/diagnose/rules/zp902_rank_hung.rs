//! ZP902: a rank went silent before its work was done.

use super::super::Case;
use super::super::causes::Sighting;
use super::super::observed::{Process, TimedOut};
use super::super::scope::Scope;
use super::super::summary::last_words;
use super::{Rule, by_rank, counted};
use crate::engines;
use crate::report::{Consequence, RuleCode};
use crate::spec::{Observation, RunSpec};
use crate::trace::{Event, Meeting, Waiting};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP902"),
    name: "rank-hung",
    crash: true,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP502", "ZP802", "ZP903"]),
    doc: include_str!("../../../docs/rules/ZP902.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let Some(TimedOut { named, waiting, timeout_s }) = &case.observed.timed_out else {
        return Vec::new();
    };
    let waits = |rank: usize| waiting.iter().any(|waiting| waiting.rank == rank);
    let mut hung: Vec<(usize, Option<Meeting>)> =
        named.iter().copied().filter(|(rank, _)| !waits(*rank)).collect();
    let mutual = hung.is_empty();
    if mutual {
        hung.clone_from(named);
    }
    let ranks: Vec<usize> = hung.iter().map(|(rank, _)| *rank).collect();
    let who = match ranks[..] {
        // The place says which.
        [_] => String::new(),
        _ => format!("{} ", counted("rank", &ranks)),
    };
    let does = if mutual {
        "wait for each other".to_owned()
    } else if let Some(meeting) = together(case, &hung) {
        format!("hung in {meeting}, which all ranks have reached and none has left")
    } else {
        "hung".to_owned()
    };
    let mut message = format!("{who}{does}: no event for {timeout_s} s");
    if !mutual {
        let whom = if ranks.len() == 1 { "it" } else { "them" };
        message.extend(waiters(waiting).map(|(ranks, meeting)| {
            let wait = if ranks.len() == 1 { "waits" } else { "wait" };
            format!("; {} {wait} for {whom} in {meeting}", counted("rank", &ranks))
        }));
    }
    let mut finding = rule.finding(message);
    if let [rank] = ranks[..] {
        finding.rank = Some(rank);
    }
    let process = |rank: usize| -> &Process<'_> { &case.observed.processes[rank] };
    for &rank in &ranks {
        if let Some(Event::PhaseEntered { step, microbatch, .. }) = process(rank).last_phase {
            finding.step = Some(*step);
            finding.microbatch = Some(*microbatch);
        }
    }
    let last = |&rank: &usize| (rank, format!("last: {}", last_words(process(rank))));
    finding.evidence.extend(by_rank(ranks.iter().map(last)));
    let outside = hung.iter().filter(|(_, meeting)| meeting.is_none()).count();
    if let (2.., Some(why)) = (outside, unseen(case.observed.spec)) {
        finding.evidence.push(format!("which of them waits for another is not known: {why}"));
    }
    if !mutual {
        let waited =
            waiting.iter().map(|it| (it.rank, format!("waited: {}", last_words(process(it.rank)))));
        for message in by_rank(waited) {
            finding.consequences.push(Consequence { code: rule.code.to_owned(), message });
        }
    }
    vec![Sighting::new(finding, Scope::default())]
}

/// The meeting in which all ranks that still had work to do hang, if these are two at least.
fn together(case: &Case<'_>, hung: &[(usize, Option<Meeting>)]) -> Option<Meeting> {
    let at_work = case.observed.processes.iter().filter(|process| !process.finished).count();
    let meeting = hung.first().and_then(|(_, meeting)| *meeting)?;
    let alike = hung.iter().all(|(_, other)| *other == Some(meeting));
    (alike && hung.len() >= 2 && hung.len() == at_work).then_some(meeting)
}

/// Waiting ranks, grouped by the meeting that they wait in.
fn waiters(waiting: &[Waiting]) -> impl Iterator<Item = (Vec<usize>, Meeting)> {
    let mut groups: Vec<(Vec<usize>, Meeting)> = Vec::new();
    for Waiting { rank, meeting } in waiting {
        match groups.iter_mut().find(|(_, known)| known == meeting) {
            Some((ranks, _)) => ranks.push(*rank),
            None => groups.push((vec![*rank], *meeting)),
        }
    }
    groups.into_iter()
}

/// Reason why a rank may wait in a collective that it never announced; none if it cannot.
fn unseen(spec: &RunSpec) -> Option<&'static str> {
    let unwatched = engines::of(spec.engine()).unwatched?;
    Some(match spec.observe {
        Observation::Outcome => "--observe outcome does not watch collectives",
        Observation::Full => unwatched,
    })
}
