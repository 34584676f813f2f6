//! Outcomes of configurations.

use serde::{Deserialize, Serialize};

use super::Configuration;
use zprobe_model::spec::{Engine, named_enum};
use zprobe_report::{Report, Verdict};

/// Longest text that is quoted from an engine, in characters.
const QUOTED: usize = 160;

named_enum! {
    /// Ending of the run of a configuration.
    pub enum Ending {
        /// Every gradient arrived as it should.
        Clean = "clean",
        /// Something is wrong.
        Findings = "findings",
        /// The engine crashed or hung.
        Crashed = "crashed",
        /// The run ended without an answer.
        Inconclusive = "inconclusive",
        /// There was no run, so that there is no report.
        NotRun = "not-run",
        /// The configuration cannot be run on this machine.
        Skipped = "skipped",
    }
}

/// Outcome of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Ending of the run.
    pub ending: Ending,
    /// Codes of the findings without repetitions, in the order of the report.
    pub codes: Vec<String>,
    /// The first finding, or the engine's own words, or the reason why there was no run, in one
    /// line.
    pub message: Option<String>,
    /// Class that really wrapped the inner optimizer.
    pub optimizer_class: Option<String>,
    /// Known bugs of the zoo that explain the findings; empty if a finding is explained by none.
    #[serde(default)]
    pub known: Vec<String>,
    /// Outcome of a second run of the same configuration in words, if it differs.
    #[serde(default)]
    pub then: Option<String>,
}

impl Outcome {
    /// The outcome that a report tells of.
    pub fn of(report: &Report) -> Self {
        if let Some(reason) = report.limit() {
            return Self::skipped(&reason);
        }
        let mut codes: Vec<String> = Vec::new();
        for finding in &report.findings {
            let code = finding.code.to_string();
            if !codes.contains(&code) {
                codes.push(code);
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
        let mut known: Vec<String> = Vec::new();
        if report.findings.iter().all(|finding| !finding.known.is_empty()) {
            let bugs = report.findings.iter().flat_map(|finding| &finding.known);
            known.extend(bugs.map(|bug| bug.name.clone()));
            known.sort_unstable();
            known.dedup();
        }
        Self {
            ending,
            codes,
            known,
            message: message.map(first_line),
            optimizer_class: report.run.optimizer_class.clone(),
            then: None,
        }
    }

    /// The outcome of a configuration that was not run.
    pub fn not_run(reason: &str) -> Self {
        Self::without_answer(Ending::NotRun, reason)
    }

    /// The outcome of a configuration that cannot be run on this machine.
    pub fn skipped(reason: &str) -> Self {
        Self::without_answer(Ending::Skipped, reason)
    }

    fn without_answer(ending: Ending, reason: &str) -> Self {
        let message = Some(first_line(reason));
        Self { ending, codes: vec![], known: vec![], message, optimizer_class: None, then: None }
    }

    /// The outcome in a few words: `ZP101, ZP601`, or `crashed (ZP901)`, or `ZP602, then clean`.
    pub fn words(&self) -> String {
        let codes = self.codes.join(", ");
        let first = match self.ending {
            Ending::Findings => codes,
            ending if codes.is_empty() => ending.to_string(),
            ending => format!("{ending} ({codes})"),
        };
        match &self.then {
            Some(then) => format!("{first}, then {then}"),
            None => first,
        }
    }

    /// Takes note of the outcome of a second run of the same configuration.
    pub fn confirm(&mut self, second: &Self) {
        self.then = (self.key() != second.key()).then(|| second.words());
    }

    /// The outcome in the engine's own words, where it has some, or the reason why there was no
    /// run.
    pub fn own_words(&self) -> Option<&str> {
        let speaks = matches!(self.ending, Ending::Crashed | Ending::NotRun | Ending::Skipped);
        self.message.as_deref().filter(|_| speaks)
    }

    /// Key that is equal for outcomes which differ in nothing but numbers in the engine's words.
    pub fn key(&self) -> String {
        let own: String = self.own_words().unwrap_or_default().to_owned();
        format!("{} {}", self.words(), own.replace(|c: char| c.is_ascii_digit(), ""))
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// A configuration and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The configuration in words.
    pub label: String,
    /// Command line that runs the configuration by itself.
    pub command: String,
    /// The configuration.
    pub configuration: Configuration,
    /// Outcome of the configuration.
    pub outcome: Outcome,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Directory in which the run is recorded, if it was kept.
    pub run_dir: Option<std::path::PathBuf>,
}

/// Configurations that zprobe refuses, all for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Reason for which zprobe refuses them.
    pub reason: String,
    /// Number of configurations that are refused.
    pub count: usize,
    /// Command line that shows the refusal.
    pub example: String,
}

/// A whole sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The engine.
    pub engine: Engine,
    /// Versions of what ran, by name.
    pub versions: std::collections::BTreeMap<String, String>,
    /// Optimizer steps of each run.
    pub steps: usize,
    /// Configurations that were refused, by reason.
    pub refused: Vec<Refused>,
    /// Number of configurations that were not tried, because time was up.
    pub not_tried: usize,
    /// Configurations that were run, with their outcomes.
    pub rows: Vec<Row>,
}
