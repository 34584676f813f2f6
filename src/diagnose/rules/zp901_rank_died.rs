//! ZP901: a rank's process ended before its work was done.

use nix::sys::signal::Signal;

use super::super::Case;
use super::super::observed::Process;
use super::super::summary::last_words;
use super::{Rule, counted};
use crate::report::{Consequence, Finding};
use crate::trace::Outcome;

pub(super) const RULE: Rule = Rule {
    code: "ZP901",
    name: "rank-died",
    crash: true,
    explained_by: &["ZP801", "ZP902", "ZP903"],
    doc: include_str!("../../../docs/rules/ZP901.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let observed = &case.observed;
    let died: Vec<(usize, &Process<'_>, String)> = observed
        .processes
        .iter()
        .enumerate()
        .filter(|(_, process)| !process.finished)
        .filter_map(|(rank, process)| Some((rank, process, ending(process.outcome?)?)))
        .collect();
    // A rank that another one took down says so, or ended by a plain exit after a signal elsewhere.
    let by_signal = |process: &Process<'_>| matches!(process.outcome, Some(Outcome::Signal(_)));
    let any_signal = died.iter().any(|(_, process, _)| by_signal(process));
    let is_root = |process: &Process<'_>| {
        if any_signal { by_signal(process) } else { !process.failure.is_some_and(blames_a_peer) }
    };
    let all_blame = died.iter().all(|(_, process, _)| !is_root(process));
    let (roots, others): (Vec<_>, Vec<_>) =
        died.into_iter().partition(|(_, process, _)| all_blame || is_root(process));
    let mut findings: Vec<Finding> = Vec::new();
    for (ending, group) in alike(roots) {
        let ranks: Vec<usize> = group.iter().map(|(rank, _)| *rank).collect();
        let mut finding = rule.finding(match ranks[..] {
            // The place says which.
            [_] => ending,
            _ => format!("{}: {ending}", counted("rank", &ranks)),
        });
        if let [rank] = ranks[..] {
            finding.rank = Some(rank);
        }
        for (rank, process) in group {
            finding.evidence.push(format!("rank {rank}, last: {}", last_words(process)));
            let failure = process.failure.map(str::to_owned);
            finding.evidence.extend(failure.filter(|text| !finding.evidence.contains(text)));
        }
        findings.push(finding);
    }
    if let Some(first) = findings.first_mut() {
        for (rank, process, ending) in others {
            first.consequences.push(Consequence {
                code: rule.code.to_owned(),
                message: match process.failure {
                    Some(failure) => format!("rank {rank}: {ending}: {failure}"),
                    None => format!("rank {rank}: {ending}"),
                },
            });
        }
    }
    findings
}

/// Ranks that ended alike, together.
fn alike<'a>(
    roots: Vec<(usize, &'a Process<'a>, String)>,
) -> Vec<(String, Vec<(usize, &'a Process<'a>)>)> {
    let mut groups: Vec<(String, Vec<_>)> = Vec::new();
    for (rank, process, ending) in roots {
        match groups.iter_mut().find(|(known, _)| *known == ending) {
            Some((_, group)) => group.push((rank, process)),
            None => groups.push((ending, vec![(rank, process)])),
        }
    }
    groups
}

/// How a process ended, if that is a death of its own.
fn ending(outcome: Outcome) -> Option<String> {
    match outcome {
        Outcome::Signal(number) => Some(match Signal::try_from(number) {
            Ok(signal) => format!("killed by {signal}"),
            Err(_) => format!("killed by signal {number}"),
        }),
        Outcome::Code(0) => Some("exited before the work was done".to_owned()),
        Outcome::Code(code) => Some(format!("failed with exit code {code}")),
        Outcome::Reaped => None,
    }
}

/// Whether a failure is what a rank sees when another one is gone.
fn blames_a_peer(failure: &str) -> bool {
    const SYMPTOMS: &[&str] = &[
        "Connection closed by peer",
        "Connection reset by peer",
        "Broken pipe",
        "was never reached by rank",
        "Timed out waiting",
        "not every rank left",
        "the TCPStore, which rank 0 hosts, is gone",
    ];
    SYMPTOMS.iter().any(|symptom| failure.contains(symptom))
}
