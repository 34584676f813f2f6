//! ZP902: a rank went silent before its work was done.

use std::collections::BTreeSet;

use crate::case::Case;
use crate::observed::{RankProcess, TimedOut};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use crate::stacks::{StackPlace, told};
use zprobe_engines as engines;
use zprobe_model::spec::{Observation, RunSpec};
use zprobe_model::trace::{Event, Meeting, Waiting};
use zprobe_report::words::{by_rank, counted};
use zprobe_report::{Consequence, RuleCode};

/// The file of torch whose function `wait` waits until another process has compiled an extension.
const LOCK: &str = "torch/utils/file_baton.py";

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP902"),
    name: "rank-hung",
    crash: true,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP502", "ZP606", "ZP802", "ZP903"]),
    doc: include_str!("../../docs/ZP902.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let Some(TimedOut { named, waiting, timeout_s }) = &case.observed.processes.timed_out else {
        return Vec::new();
    };
    let waits = |rank: usize| waiting.iter().any(|waiting| waiting.rank == rank);
    let mut hung: Vec<(usize, Option<Meeting>)> =
        named.iter().copied().filter(|(rank, _)| !waits(*rank)).collect();
    let mutual = hung.is_empty();
    if mutual {
        hung.clone_from(named);
    }
    let stopped: Vec<usize> =
        named.iter().map(|(rank, _)| *rank).filter(|it| is_stopped(case, *it)).collect();
    let everyone: BTreeSet<usize> =
        named.iter().map(|(rank, _)| *rank).chain(waiting.iter().map(|it| it.rank)).collect();
    let places = places(case, &everyone);
    let at_work = at_work(&places, waiting);
    if !stopped.is_empty() {
        hung.retain(|(rank, _)| stopped.contains(rank));
    } else if !at_work.is_empty() {
        let meeting = |rank: usize| named.iter().find(|it| it.0 == rank).and_then(|it| it.1);
        hung = at_work.iter().map(|(rank, _)| (*rank, meeting(*rank))).collect();
    }
    let ranks: Vec<usize> = hung.iter().map(|(rank, _)| *rank).collect();
    let who = match ranks[..] {
        // The place of the finding names the rank.
        [_] => String::new(),
        [] => "the run ".to_owned(),
        _ => format!("{} ", counted("rank", &ranks)),
    };
    let does = if ranks.is_empty() {
        "hung".to_owned()
    } else if mutual {
        "wait for each other".to_owned()
    } else if let Some(meeting) = together(case, &hung) {
        format!("hung in {meeting}, which all ranks have reached and no rank has left")
    } else {
        "hung".to_owned()
    };
    let told_places = if stopped.is_empty() {
        told_places(&places, &at_work)
    } else {
        Some(told_stopped(&stopped, &places))
    };
    let mut message = match told_places {
        Some(at) if case.observed.processes.ranks.iter().all(|it| it.last.is_none()) => format!(
            "hung before the first backward: {at}: no event for {timeout_s} s (raise --timeout if the \
             script takes longer to load)"
        ),
        Some(at) => format!("hung: {at}: no event for {timeout_s} s"),
        None => format!("{who}{does}: no event for {timeout_s} s"),
    };
    if waits_for_lock(&places) {
        message += "; they wait for the lock of a compilation that was killed: remove the files named lock in the \
                    folders of ~/.cache/torch_extensions (or of TORCH_EXTENSIONS_DIR)";
    }
    // Collectives that were counted are not reported if the stacks contradict them.
    if !mutual && waiting.iter().all(|it| !ranks.contains(&it.rank)) {
        let whom = if ranks.len() == 1 { "it" } else { "them" };
        let groups: Vec<(Vec<usize>, Meeting)> = waiters(waiting).collect();
        let is_one = groups.len() == 1;
        message.extend(groups.into_iter().map(|(ranks, meeting)| {
            if is_one && !at_work.is_empty() {
                return format!("; that is {meeting}");
            }
            let wait = if ranks.len() == 1 { "waits" } else { "wait" };
            format!("; {} {wait} for {whom} in {meeting}", counted("rank", &ranks))
        }));
    }
    let mut finding = rule.finding(message);
    if let [rank] = ranks[..] {
        finding.rank = Some(rank);
    }
    let process = |rank: usize| -> &RankProcess<'_> { &case.observed.processes.ranks[rank] };
    for &rank in &ranks {
        if let Some(Event::PhaseEntered { step, microbatch, .. }) = process(rank).last_phase {
            finding.step = Some(*step);
            finding.microbatch = Some(*microbatch);
        }
    }
    let last = |&rank: &usize| (rank, format!("last: {}", process(rank).last_words()));
    finding.evidence.extend(by_rank(ranks.iter().map(last)));
    let outside = hung.iter().filter(|(_, meeting)| meeting.is_none()).count();
    if let (2.., true, Some(why)) = (outside, places.is_empty(), unseen(case.observed.spec)) {
        finding
            .evidence
            .push(format!("it is unknown which of these ranks waits for another: {why}"));
    }
    if !mutual {
        let waited = waiting
            .iter()
            .map(|it| (it.rank, format!("waited: {}", process(it.rank).last_words())));
        for message in by_rank(waited) {
            finding.consequences.push(Consequence { code: rule.code.to_owned(), message });
        }
    }
    vec![Sighting::new(finding, Scope::default())]
}

/// True if all ranks wait in torch for the compilation of an extension, and none compiles.
fn waits_for_lock(places: &[(usize, StackPlace)]) -> bool {
    let is_it = |(_, place): &(usize, StackPlace)| place.innermost.starts_with(LOCK);
    !places.is_empty() && places.iter().all(is_it)
}

fn is_stopped(case: &Case<'_>, rank: usize) -> bool {
    case.observed.processes.ranks[rank].is_stopped
}

/// Describes the stopped ranks, and the places of the others.
fn told_stopped(stopped: &[usize], places: &[(usize, StackPlace)]) -> String {
    let is = if stopped.len() == 1 { "is" } else { "are" };
    let who = format!("{} {is} stopped, by SIGSTOP or a debugger", counted("rank", stopped));
    let others: Vec<(usize, StackPlace)> =
        places.iter().filter(|(rank, _)| !stopped.contains(rank)).cloned().collect();
    if others.is_empty() { who } else { format!("{who}, while {}", told(&others)) }
}

/// Returns the places of ranks in their programs, if their stacks were recorded.
fn places(case: &Case<'_>, ranks: &BTreeSet<usize>) -> Vec<(usize, StackPlace)> {
    let place = |rank: usize| Some((rank, StackPlace::of(&case.observed.processes.ranks[rank])?));
    ranks.iter().filter_map(|rank| place(*rank)).collect()
}

/// Returns the ranks that wait for no other rank while others wait; these are the ranks that hang. Empty if all ranks
/// wait, or none.
fn outside(places: &[(usize, StackPlace)]) -> Vec<(usize, StackPlace)> {
    let (waiting, at_work): (Vec<_>, Vec<_>) =
        places.iter().cloned().partition(|(_, place)| place.meeting.is_some());
    if waiting.is_empty() { Vec::new() } else { at_work }
}

/// Returns the places of the ranks that do not wait for others: by their stacks, or else by the collectives that all
/// ranks issued.
fn at_work(places: &[(usize, StackPlace)], waiting: &[Waiting]) -> Vec<(usize, StackPlace)> {
    let by_stacks = outside(places);
    if !by_stacks.is_empty() || waiting.is_empty() {
        return by_stacks;
    }
    let waits = |rank: usize| waiting.iter().any(|it| it.rank == rank);
    places.iter().filter(|(rank, _)| !waits(*rank)).cloned().collect()
}

/// Describes the places of the ranks that hang, and then of the ranks that wait for them; `None` if no stack was
/// recorded.
fn told_places(places: &[(usize, StackPlace)], at_work: &[(usize, StackPlace)]) -> Option<String> {
    if at_work.is_empty() {
        return (!places.is_empty()).then(|| told(places));
    }
    let waiting: Vec<(usize, StackPlace)> =
        places.iter().filter(|place| !at_work.contains(place)).cloned().collect();
    if waiting.is_empty() {
        return Some(told(at_work));
    }
    Some(format!("{} while {}", told(at_work), told(&waiting)))
}

/// Returns the meeting in which all unfinished ranks hang, if there are at least two such ranks.
fn together(case: &Case<'_>, hung: &[(usize, Option<Meeting>)]) -> Option<Meeting> {
    let at_work = case.observed.processes.ranks.iter().filter(|process| !process.finished).count();
    let meeting = hung.first().and_then(|(_, meeting)| *meeting)?;
    let alike = hung.iter().all(|(_, other)| *other == Some(meeting));
    (alike && hung.len() >= 2 && hung.len() == at_work).then_some(meeting)
}

/// Groups the waiting ranks by the meeting in which they wait.
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

/// Returns the reason why a rank may wait in a collective that it never announced; `None` if all collectives are
/// announced.
fn unseen(spec: &RunSpec) -> Option<&'static str> {
    let unwatched = engines::of(spec.engine()).unwatched?;
    Some(match spec.observe {
        Observation::Outcome => "--observe outcome does not watch collectives",
        Observation::Full => unwatched,
    })
}
