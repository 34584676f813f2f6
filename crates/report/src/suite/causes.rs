//! Cases that are not well, by what is wrong: one bug of an engine makes many of them.

use super::{Case, CaseFinding, Status, Suite};
use crate::Finding;
use zprobe_model::spec::Engine;

/// Cases of one engine that are not well for the same cause; there is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause<'a> {
    /// The first of them, which stands for all.
    pub first: &'a Case,
    /// The others.
    pub others: Vec<&'a Case>,
}

impl<'a> Cause<'a> {
    /// All cases, in the order in which they were run.
    pub fn cases(&self) -> impl Iterator<Item = &'a Case> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

impl Suite {
    /// Every case that is not well, under its cause, in the order in which causes were met.
    pub fn causes(&self) -> Vec<Cause<'_>> {
        let mut causes: Vec<(Key, Cause<'_>)> = Vec::new();
        for case in self.cases.iter().filter(|case| case.status.is_bad()) {
            let key = Key::of(case);
            match causes.iter_mut().find(|(known, _)| *known == key) {
                Some((_, cause)) => cause.others.push(case),
                None => causes.push((key, Cause { first: case, others: vec![] })),
            }
        }
        causes.into_iter().map(|(_, cause)| cause).collect()
    }
}

/// Key that is equal for cases which are not well for the same cause.
#[derive(PartialEq)]
struct Key {
    engine: Engine,
    status: Status,
    expected: String,
    /// Kinds of the findings; or, where there are none, the complaint about the case.
    wrong: Vec<String>,
}

impl Key {
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

/// Kind of a finding: its rule, with the known bugs that it looks like. If there are none, with its
/// message but for numbers, which count microbatches and ranks.
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
