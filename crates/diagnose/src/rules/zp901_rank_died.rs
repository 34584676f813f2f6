//! ZP901: a rank's process ended before its work was done.

use crate::account::account;
use crate::case::Case;
use crate::observed::{Observed, RankProcess};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use crate::signatures::recognise;
use crate::stacks::{StackPlace, own_lines};
use zprobe_model::trace::{AgentLoss, Event, Outcome, REST_OF_SCRIPT};
use zprobe_report::words::{by_rank, counted};
use zprobe_report::{Consequence, Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP901"),
    name: "rank-died",
    crash: true,
    is_handed_on: true,
    explained_by: &RuleCode::all(["ZP201", "ZP301", "ZP502", "ZP801", "ZP802", "ZP902", "ZP903"]),
    doc: include_str!("../../docs/ZP901.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let left_alone = case.observed.left_alone();
    let processes = &case.observed.processes.ranks;
    let is_broken = |rank: &usize| !processes[*rank].finished && !left_alone.contains(rank);
    let told = |rank: usize| Some((rank, &processes[rank], ending(case, rank)?));
    let mut died: Vec<_> = (0..processes.len()).filter(is_broken).filter_map(told).collect();
    let blames: IsOne = |process| process.blames_a_peer();
    let any = |died: &[(usize, &RankProcess<'_>, String)], is_one: IsOne| {
        died.iter().any(|(_, process, _)| is_one(process))
    };
    let has_lost_a_peer = any(&died, blames);
    if has_lost_a_peer && !any(&died, ended_by_itself) {
        died.extend(ended_first(case).into_iter().filter_map(told));
    }
    // A rank that was taken down by another one says so in its error, exits plainly after a signal elsewhere or after
    // the loss of a machine, or says nothing because its launcher ended it.
    let kinds: [IsOne; 5] = [
        |process| matches!(process.outcome, Some(Outcome::Signal(_))),
        |process| process.outcome == Some(Outcome::Lost),
        ended_by_itself,
        |process| !process.blames_a_peer(),
        |_| true,
    ];
    let is_root = kinds.into_iter().find(|is_one| any(&died, *is_one)).unwrap_or(blames);
    let (mut roots, others): (Vec<_>, Vec<_>) =
        died.into_iter().partition(|(_, process, _)| is_root(process));
    for (_, process, ending) in roots.iter_mut().filter(|_| has_lost_a_peer) {
        if process.outcome == Some(Outcome::Code(0)) {
            ending.push_str("; the ranks that went on lost the connection");
        }
    }
    let mut findings: Vec<Finding> =
        alike(roots).into_iter().map(|alike| finding(case, rule, alike)).collect();
    if let Some(first) = findings.first_mut() {
        let ended = others.into_iter().map(|(rank, process, ending)| {
            let own = process.failure.map(|failure| format!(": {}", account(failure)));
            (rank, format!("{ending}{}", own.unwrap_or_default()))
        });
        for message in by_rank(ended) {
            first.consequences.push(Consequence { code: rule.code.to_owned(), message });
        }
    }
    findings.into_iter().map(|finding| Sighting::new(finding, Scope::default())).collect()
}

/// A criterion for ranks that died.
type IsOne = fn(&RankProcess<'_>) -> bool;

/// True if the rank ended for a reason of its own, as far as its process, its launcher or its agent has reported it.
fn ended_by_itself(process: &RankProcess<'_>) -> bool {
    let is_told = process.failure.is_some() || process.outcome != Some(Outcome::Unseen);
    is_told && !process.blames_a_peer()
}

/// Returns the ranks whose scripts ended first, without an error, before the last watched step. Empty if zprobe itself
/// stopped watching.
fn ended_first(case: &Case<'_>) -> Vec<usize> {
    let Observed { spec, processes, software, .. } = &case.observed;
    let is_let_go = software.not_observed.iter().any(|(what, _)| *what == REST_OF_SCRIPT);
    let Some(script) = spec.script().filter(|_| !is_let_go) else { return Vec::new() };
    let ranks = processes.ranks.iter().enumerate().filter(|(_, process)| process.finished);
    let ends: Vec<_> = ranks.map(|(rank, _)| (case.observed.steps_of(rank), rank)).collect();
    let first = ends.iter().map(|(steps, _)| *steps).min();
    let first = first.filter(|steps| *steps < script.watched_steps());
    ends.into_iter().filter(|(steps, _)| Some(*steps) == first).map(|(_, rank)| rank).collect()
}

/// The ranks that ended in the same way.
struct Alike<'a> {
    ending: String,
    /// The account of the error; `None` if the rank reported none.
    account: Option<String>,
    ranks: Vec<(usize, &'a RankProcess<'a>)>,
}

fn alike<'a>(roots: Vec<(usize, &'a RankProcess<'a>, String)>) -> Vec<Alike<'a>> {
    let mut groups: Vec<Alike<'a>> = Vec::new();
    for (rank, process, ending) in roots {
        let account = process.failure.map(account);
        let same = |known: &&mut Alike<'_>| known.ending == ending && known.account == account;
        match groups.iter_mut().find(same) {
            Some(known) => known.ranks.push((rank, process)),
            None => groups.push(Alike { ending, account, ranks: vec![(rank, process)] }),
        }
    }
    groups
}

/// Creates the finding about ranks that ended in the same way: the account of the error, then the known meaning of the
/// error, and the places of the ranks.
fn finding(case: &Case<'_>, rule: &Rule, alike: Alike<'_>) -> Finding {
    let Alike { ending, account: failure, ranks } = alike;
    // A rank that fails before its script runs leaves only its standard error.
    let stderr = ranks
        .iter()
        .find_map(|(_, process)| process.stderr)
        .or(case.observed.processes.host_stderr);
    let last_line = stderr.and_then(|text| text.lines().rfind(|line| !line.trim().is_empty()));
    let failure = failure.or(last_line.filter(|line| recognise(line).is_some()).map(account));
    let known = failure.as_deref().and_then(recognise);
    let mut message = failure.clone().unwrap_or_else(|| ending.clone());
    if let Some(known) = known {
        message =
            format!("this engine cannot run this configuration here: {}: {message}", known.meaning);
    }
    let own = |process: &RankProcess<'_>| StackPlace::of(process).and_then(|place| place.own);
    let places: Vec<_> = ranks.iter().map(|(_, process)| own(process)).collect();
    if let [Some(place), others @ ..] = &places[..]
        && others.iter().all(|other| other.as_ref() == Some(place))
    {
        message.push_str(&format!(", at {place}"));
    }
    let numbers: Vec<usize> = ranks.iter().map(|(rank, _)| *rank).collect();
    let mut finding = rule.finding(match numbers[..] {
        // The place of the finding names the rank.
        [_] => message,
        _ => format!("{}: {message}", counted("rank", &numbers)),
    });
    finding.limit = known.filter(|known| known.is_limit).map(|known| known.meaning.to_owned());
    if let [rank] = numbers[..] {
        finding.rank = Some(rank);
    }
    let ending = if failure.is_some() { format!("{ending}, ") } else { String::new() };
    let last = ranks.iter();
    let last =
        last.map(|(rank, process)| (*rank, format!("{ending}last: {}", process.last_words())));
    finding.evidence.extend(by_rank(last));
    let own = ranks.iter().filter_map(|(rank, process)| Some((*rank, own_lines(process)?)));
    finding.evidence.extend(by_rank(own.map(|(rank, lines)| (rank, format!("at {lines}")))));
    if failure.is_some() {
        finding.evidence.extend(numbers.first().and_then(|&rank| before(case, rank)));
    }
    if let Some((_, RankProcess { last_phase: Some(phase), .. })) = ranks.first()
        && let Event::PhaseEntered { step, microbatch, .. } = phase
    {
        (finding.step, finding.microbatch) = (Some(*step), Some(*microbatch));
    }
    finding
}

/// Describes a rank's last backward and last bucket before its end.
fn before(case: &Case<'_>, rank: usize) -> Option<String> {
    let backwards = &case.observed.hooks.backwards;
    let (at, backward) = backwards.iter().rfind(|(at, _)| at.rank == rank)?;
    let mut known = format!(
        "in its last backward, step {}, microbatch {}: {} AccumulateGrad nodes",
        at.step, at.microbatch, backward.accumulate_grad_nodes,
    );
    if let Some(fired) = backward.fired {
        known.push_str(&format!(", {} hooks fired", fired.iter().sum::<u32>()));
    }
    if let Some(flush) = case.observed.hooks.flushes.iter().rfind(|flush| flush.rank == rank) {
        known.push_str(&format!("; in its last bucket, {} elements", flush.elements));
    }
    Some(known)
}

/// Describes the ending of a rank's process; `None` if zprobe ended the process after the run.
fn ending(case: &Case<'_>, rank: usize) -> Option<String> {
    let process = &case.observed.processes.ranks[rank];
    let outcome = process.outcome?;
    match (outcome, case.observed.spec.script()) {
        (Outcome::Lost, _) => Some(match process.lost {
            Some((machine, AgentLoss::Closed)) => {
                format!("lost: the zprobe process on {machine} has ended")
            }
            Some((machine, AgentLoss::Silent)) => {
                format!("lost: {machine} is silent, because it is down or out of reach")
            }
            Some((machine, AgentLoss::Garbled)) => {
                format!("lost: the zprobe process on {machine} sent an invalid message")
            }
            None => "lost with its machine".to_owned(),
        }),
        (Outcome::Signal(_) | Outcome::WithLauncher(_), _) => outcome.death(),
        (Outcome::Code(0), Some(script)) => Some(format!(
            "the script ended (exit code 0) after {} of the {} watched steps",
            case.observed.steps_of(rank),
            script.watched_steps(),
        )),
        (Outcome::Code(0), None) => Some("exited before the work was done".to_owned()),
        (Outcome::Code(code), _) => Some(format!("failed with exit code {code}")),
        (Outcome::Unseen, _) => Some("ended before the work was done".to_owned()),
        (Outcome::Reaped, _) => None,
    }
}
