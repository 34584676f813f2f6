//! Groups the cases that need attention by their cause, because one bug of an engine fails many cases.

use super::{Case, CaseFinding, Status, Suite};
use crate::Finding;
use zprobe_model::spec::Engine;

/// The cases of one engine that need attention for the same cause; there is at least one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause<'a> {
    /// The first case, which represents all cases of the cause.
    pub first: &'a Case,
    /// The other cases of the same cause.
    pub others: Vec<&'a Case>,
}

impl<'a> Cause<'a> {
    /// All cases, in the order in which they were run.
    pub fn cases(&self) -> impl Iterator<Item = &'a Case> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

impl Suite {
    /// Every case that needs attention, grouped by cause, in the order of the first case of each cause.
    pub fn causes(&self) -> Vec<Cause<'_>> {
        let mut causes: Vec<(CauseKey, Cause<'_>)> = Vec::new();
        for case in self.cases.iter().filter(|case| case.status.is_bad()) {
            let key = CauseKey::of(case);
            match causes.iter_mut().find(|(known, _)| *known == key) {
                Some((_, cause)) => cause.others.push(case),
                None => causes.push((key, Cause { first: case, others: vec![] })),
            }
        }
        causes.into_iter().map(|(_, cause)| cause).collect()
    }
}

/// The key of a cause: cases with equal keys have the same cause.
#[derive(PartialEq)]
struct CauseKey {
    engine: Engine,
    status: Status,
    expected: String,
    /// The kinds of the findings that are not accepted; if there are none, the complaint about the case.
    wrong: Vec<String>,
}

impl CauseKey {
    fn of(case: &Case) -> Self {
        let findings = case.findings.iter().filter(|it| it.accepted.is_none());
        let mut wrong: Vec<String> =
            findings.map(|CaseFinding { finding, .. }| kind(finding)).collect();
        if wrong.is_empty() {
            wrong.push(without_numbers(&case.complaint()));
        }
        let (engine, status, expected) = (case.engine, case.status, case.expected.clone());
        Self { engine, status, expected, wrong }
    }
}

/// The kind of a finding: the code of its rule with the names of its known bugs. Without a known bug, the code with the
/// message, without the numbers, which name microbatches and ranks.
fn kind(finding: &Finding) -> String {
    let known: Vec<&str> = finding.known.iter().map(|known| known.name.as_str()).collect();
    let words = match known[..] {
        [] => without_numbers(&finding.message),
        _ => known.join(", "),
    };
    format!("{} {words}", finding.code)
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}
