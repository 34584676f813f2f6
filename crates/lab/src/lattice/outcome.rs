//! The outcomes of configurations.

use serde::{Deserialize, Serialize};

use super::Configuration;
use zprobe_model::spec::{Engine, named_enum};
use zprobe_report::{Report, Verdict};

/// The maximum length of a text that is quoted from an engine, in characters.
const QUOTED: usize = 160;

named_enum! {
    /// The end of the run of a configuration.
    pub enum SweepEnding {
        /// Every gradient arrived as expected.
        Clean = "clean",
        /// The report has findings.
        Findings = "findings",
        /// The engine crashed or hung.
        Crashed = "crashed",
        /// The run ended without an answer about the gradients.
        Inconclusive = "inconclusive",
        /// There was no run, so there is no report.
        NotRun = "not-run",
        /// The configuration cannot be run on this machine.
        Skipped = "skipped",
    }
}

/// The outcome of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepOutcome {
    /// The end of the run.
    pub ending: SweepEnding,
    /// The codes of the findings without duplicates, in the order of the report.
    pub codes: Vec<String>,
    /// One line: the first finding, the engine's own error message, or the reason why there was no run. `None` for
    /// a clean run.
    pub message: Option<String>,
    /// The class that actually wrapped the inner optimizer.
    pub optimizer_class: Option<String>,
    /// The known bugs of the zoo that explain the findings; empty if at least one finding has no explanation.
    #[serde(default)]
    pub known: Vec<String>,
    /// The outcome of a second run of the same configuration, in words; `None` unless it differs.
    #[serde(default)]
    pub then: Option<String>,
}

impl SweepOutcome {
    /// The outcome that a report describes.
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
            Verdict::Clean => (SweepEnding::Clean, None),
            Verdict::Findings => (SweepEnding::Findings, finding()),
            Verdict::Crashed => (SweepEnding::Crashed, failure().or_else(finding)),
            Verdict::Inconclusive => (SweepEnding::Inconclusive, finding()),
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
        Self::without_answer(SweepEnding::NotRun, reason)
    }

    /// The outcome of a configuration that cannot be run on this machine.
    pub fn skipped(reason: &str) -> Self {
        Self::without_answer(SweepEnding::Skipped, reason)
    }

    fn without_answer(ending: SweepEnding, reason: &str) -> Self {
        let message = Some(first_line(reason));
        Self { ending, codes: vec![], known: vec![], message, optimizer_class: None, then: None }
    }

    /// The outcome in a few words: `ZP101, ZP601`, or `crashed (ZP901)`, or `ZP602, then clean`.
    pub fn words(&self) -> String {
        let codes = self.codes.join(", ");
        let first = match self.ending {
            SweepEnding::Findings => codes,
            ending if codes.is_empty() => ending.to_string(),
            ending => format!("{ending} ({codes})"),
        };
        match &self.then {
            Some(then) => format!("{first}, then {then}"),
            None => first,
        }
    }

    /// Records the outcome of a second run of the same configuration, if it differs from this outcome.
    pub fn confirm(&mut self, second: &Self) {
        self.then = (self.key() != second.key()).then(|| second.words());
    }

    /// The engine's own message about a crash, or the reason why there was no run; `None` for any other outcome.
    pub fn own_words(&self) -> Option<&str> {
        let speaks = matches!(
            self.ending,
            SweepEnding::Crashed | SweepEnding::NotRun | SweepEnding::Skipped
        );
        self.message.as_deref().filter(|_| speaks)
    }

    /// A key that is equal for outcomes that differ only in the numbers of the engine's messages.
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

/// A configuration with its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    /// The label of the configuration.
    pub label: String,
    /// The command line that runs only this configuration.
    pub command: String,
    /// The configuration that was run.
    pub configuration: Configuration,
    /// The outcome of the configuration.
    pub outcome: SweepOutcome,
    /// The duration of the run, in seconds.
    pub seconds: f64,
    /// The run directory, if it was kept.
    pub run_dir: Option<std::path::PathBuf>,
}

/// The configurations that zprobe refuses for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The reason why zprobe refuses the configurations.
    pub reason: String,
    /// The number of configurations that zprobe refuses for this reason.
    pub count: usize,
    /// A command line that shows the refusal.
    pub example: String,
}

/// The result of a whole sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The engine that was swept.
    pub engine: Engine,
    /// The versions of the software that ran, by name.
    pub versions: std::collections::BTreeMap<String, String>,
    /// The number of optimizer steps of each run.
    pub steps: usize,
    /// The configurations that zprobe refused, by reason.
    pub refused: Vec<Refused>,
    /// The number of configurations that were not tried because time was up.
    pub not_tried: usize,
    /// The configurations that were run, with their outcomes.
    pub rows: Vec<SweepRow>,
}
