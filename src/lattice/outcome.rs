//! What came of configurations, and the same outcome of many in one line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Configuration;
use crate::report::{Report, Verdict};
use crate::spec::named_enum;

/// Longest text that is quoted from an engine, in characters.
const QUOTED: usize = 160;

named_enum! {
    /// How the run of a configuration ended.
    pub enum Ending {
        /// As a report's.
        Clean = "clean",
        /// As a report's.
        Findings = "findings",
        /// As a report's.
        Crashed = "crashed",
        /// As a report's.
        Inconclusive = "inconclusive",
        /// There is no report.
        NotRun = "not-run",
    }
}

/// What came of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How its run ended.
    pub ending: Ending,
    /// Codes of the findings, each once, in the order of the report.
    pub codes: Vec<String>,
    /// The first finding, or the engine's own words, or why there was no run: one line.
    pub message: Option<String>,
    /// Class that really wrapped the inner optimizer.
    pub optimizer_class: Option<String>,
}

impl Outcome {
    /// What a report says.
    pub fn of(report: &Report) -> Self {
        let mut codes: Vec<String> = Vec::new();
        for finding in &report.findings {
            if !codes.contains(&finding.code) {
                codes.push(finding.code.clone());
            }
        }
        let finding = || report.findings.first().map(|finding| finding.message.as_str());
        let failure = || report.ranks.iter().find_map(|rank| rank.failure.as_deref());
        let (ending, message) = match report.verdict {
            Verdict::Clean => (Ending::Clean, None),
            Verdict::Findings => (Ending::Findings, finding()),
            Verdict::Crashed => (Ending::Crashed, failure().or_else(finding)),
            Verdict::Inconclusive => (Ending::Inconclusive, finding()),
        };
        Self {
            ending,
            codes,
            message: message.map(first_line),
            optimizer_class: report.run.optimizer_class.clone(),
        }
    }

    /// There was no run.
    pub fn not_run(reason: &str) -> Self {
        let message = Some(first_line(reason));
        Self { ending: Ending::NotRun, codes: vec![], message, optimizer_class: None }
    }

    /// What is the same for equal outcomes: codes for findings, words without numbers for crashes.
    fn key(&self) -> (Ending, Vec<String>, String) {
        let words = match self.ending {
            Ending::Crashed | Ending::NotRun => self.message.as_deref().unwrap_or_default(),
            Ending::Clean | Ending::Findings | Ending::Inconclusive => "",
        };
        (self.ending, self.codes.clone(), words.replace(|c: char| c.is_ascii_digit(), ""))
    }

    /// In a few words: `ZP101, ZP601`, or `crashed (ZP901): IndexError: …`.
    pub fn words(&self) -> String {
        let codes = self.codes.join(", ");
        let message = self.message.as_deref().unwrap_or_default();
        match self.ending {
            Ending::Findings => codes,
            Ending::Crashed if codes.is_empty() => format!("crashed: {message}"),
            Ending::Crashed => format!("crashed ({codes}): {message}"),
            Ending::NotRun => format!("not run: {message}"),
            ending => ending.to_string(),
        }
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// An outcome, and all configurations that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The outcome of the first of them.
    pub outcome: &'a Outcome,
    /// Where: bases that behave alike, and what has to be added to them.
    pub classes: Vec<Class<'a>>,
}

/// Bases with the same additions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class<'a> {
    /// The bases, in words.
    pub bases: Vec<String>,
    /// The fewest additions that are enough, in words; none if the bases alone are.
    pub with: Vec<String>,
    /// All configurations.
    pub members: Vec<&'a Configuration>,
}

/// Groups equal outcomes, in the order in which they come first.
pub fn group<'a>(rows: &'a [(Configuration, Outcome)]) -> Vec<Group<'a>> {
    let mut keys = Vec::new();
    let mut members: Vec<(&Outcome, Vec<&Configuration>)> = Vec::new();
    for (configuration, outcome) in rows {
        let key = outcome.key();
        match keys.iter().position(|known| *known == key) {
            Some(at) => members[at].1.push(configuration),
            None => {
                keys.push(key);
                members.push((outcome, vec![configuration]));
            }
        }
    }
    members
        .into_iter()
        .map(|(outcome, members)| Group { outcome, classes: classes(&members) })
        .collect()
}

/// Sorts configurations with the same outcome by base, and joins bases with the same additions.
fn classes<'a>(members: &[&'a Configuration]) -> Vec<Class<'a>> {
    let mut bases: Vec<(String, Vec<&Configuration>)> = Vec::new();
    for member in members {
        let label = member.base_label();
        match bases.iter_mut().find(|(known, _)| *known == label) {
            Some((_, same)) => same.push(member),
            None => bases.push((label, vec![member])),
        }
    }
    let mut classes: BTreeMap<usize, Class<'a>> = BTreeMap::new();
    for (at, (base, members)) in bases.into_iter().enumerate() {
        let with = fewest(&members);
        match classes.values_mut().find(|class| class.with == with) {
            Some(class) => {
                class.bases.push(base);
                class.members.extend(members);
            }
            None => {
                classes.insert(at, Class { bases: vec![base], with, members });
            }
        }
    }
    classes.into_values().collect()
}

/// The additions that no other addition is a part of; none if there is a member without any.
fn fewest(members: &[&Configuration]) -> Vec<String> {
    let part_of = |less: &Configuration, more: &Configuration| {
        less.extra.len() < more.extra.len()
            && less.extra.iter().all(|choice| more.extra.contains(choice))
    };
    members
        .iter()
        .filter(|member| !members.iter().any(|other| part_of(other, member)))
        .filter(|member| !member.extra.is_empty())
        .map(|member| super::labels(&member.extra, " × "))
        .collect()
}
