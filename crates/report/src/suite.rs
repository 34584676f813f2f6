//! The report on a suite: many runs, each with its expected and its actual result.
//!
//! [`Suite`] is what `zprobe check --output-format json` prints; its JSON Schema is checked in as
//! `schema/check.v1.schema.json`. A single run is a suite of one case, so that the forms that other
//! programs read need one renderer each.

mod causes;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::causes::Cause;
use super::words::amount;
use super::{Exit, Finding, Report, Schema, Severity, Verdict};
use zprobe_model::spec::{Engine, any_engine, any_engine_schema, named_enum};

/// A suite and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suite {
    /// Version of this format.
    pub schema: Schema,
    /// The process exit code that goes with the suite.
    pub exit_code: u8,
    /// Reason why the suite gives no answer about the engines that it is for, if it gives none:
    /// none of their probes was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<String>,
    /// Every case, in the order in which they were run.
    pub cases: Vec<Case>,
    /// Entries of the baseline that need attention.
    pub notices: Vec<Notice>,
    /// Seconds from start to end.
    pub seconds: f64,
    /// File that stands for a case which has none of its own: the configuration.
    pub file: String,
    /// Documentation of the rules that have findings, by code.
    #[serde(skip)]
    pub pages: BTreeMap<String, &'static str>,
}

/// A probe on one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Case {
    /// The probe's name.
    pub probe: String,
    /// The engine.
    #[serde(deserialize_with = "any_engine")]
    #[schemars(schema_with = "any_engine_schema")]
    pub engine: Engine,
    /// Description of what the probe tries.
    pub description: String,
    /// The probe's file; none for probes that are part of zprobe.
    pub file: Option<String>,
    /// Command line that runs the case by itself.
    pub command: String,
    /// Expected result.
    pub expected: String,
    /// Result, in a few words.
    pub got: String,
    /// Status of the case.
    pub status: Status,
    /// Reason why the case was skipped or could not be run, and what to do.
    pub reason: Option<String>,
    /// Findings of the run.
    pub findings: Vec<CaseFinding>,
    /// Versions of what ran, by name.
    pub versions: BTreeMap<String, String>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Directory in which the run is recorded, if it was kept.
    pub run_dir: Option<std::path::PathBuf>,
}

named_enum! {
    /// Status of a case.
    pub enum Status {
        /// As expected.
        Passed = "passed",
        /// Not as expected, and the baseline accepts everything that was found.
        Accepted = "accepted",
        /// Not as expected.
        Failed = "failed",
        /// The engine crashed or hung.
        Crashed = "crashed",
        /// The run ended without an answer.
        Inconclusive = "inconclusive",
        /// There was no run.
        NotRun = "not-run",
        /// The engine is not there, or cannot run the case on this machine, or an earlier failure
        /// ended the suite.
        Skipped = "skipped",
    }
}

/// A finding, and whether the baseline accepts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaseFinding {
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
    /// Acceptance by the baseline; none if the finding is not accepted.
    pub accepted: Option<Acceptance>,
}

/// Acceptance of a finding: the reason, and the last day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Acceptance {
    /// Reason for accepting the finding.
    pub reason: String,
    /// Last day on which the finding is accepted, as `2026-12-31`.
    pub expires: String,
}

/// An entry of the baseline that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Notice {
    /// Kind of the problem.
    pub kind: NoticeKind,
    /// The baseline's file.
    pub file: String,
    /// Line of the entry, from 1.
    pub line: usize,
    /// The problem in a sentence.
    pub message: String,
}

named_enum! {
    /// Problem with an entry of a baseline.
    pub enum NoticeKind {
        /// The entry would accept a finding, but is out of date.
        Expired = "expired",
        /// The entry accepts nothing that was found.
        Unused = "unused",
    }
}

impl NoticeKind {
    /// Severity of the problem: an entry that is out of date hides nothing any more.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Expired => Severity::Error,
            Self::Unused => Severity::Warning,
        }
    }
}

/// The exit code that goes with many statuses: that of the worst, unless nothing ran.
pub fn exit(statuses: impl IntoIterator<Item = Status>) -> Exit {
    let statuses: Vec<Status> = statuses.into_iter().collect();
    let none = statuses.iter().all(|it| matches!(it, Status::NotRun | Status::Skipped));
    if none && !statuses.is_empty() {
        return Exit::NothingRan;
    }
    Verdict::worst(statuses.into_iter().map(Status::verdict)).map_or(Exit::Clean, Exit::from)
}

impl Suite {
    /// A suite of these cases; `page` finds the documentation of a rule, `file` stands for cases
    /// that have none of their own.
    pub fn new(
        cases: Vec<Case>,
        notices: Vec<Notice>,
        file: String,
        page: impl Fn(&str) -> Option<&'static str>,
    ) -> Self {
        let codes = cases.iter().flat_map(|case| &case.findings).map(|it| &it.finding.code);
        let pages = codes.filter_map(|code| Some((code.to_string(), page(code)?))).collect();
        let exit_code = exit(cases.iter().map(|case| case.status)).code();
        let seconds = cases.iter().map(|case| case.seconds).sum();
        let (schema, unchecked) = (Schema::CURRENT, None);
        Self { schema, exit_code, unchecked, cases, notices, seconds, file, pages }
    }

    /// The suite, marked as giving no answer about the engines that it is for; its exit code says
    /// so even if all is well.
    #[must_use]
    pub fn without_answer(mut self, why: String) -> Self {
        self.unchecked = Some(why);
        self.exit_code = self.exit().code();
        self
    }

    /// The exit code of the process: a suite that would be well is not if it is no answer.
    pub fn exit(&self) -> Exit {
        match exit(self.cases.iter().map(|case| case.status)) {
            Exit::Clean if self.unchecked.is_some() => Exit::NothingRan,
            exit => exit,
        }
    }

    /// Skipped cases in words, by engine and reason: `2 probes of ddp (a, b): no torch`. Cases have their names
    /// where others of the engine were run.
    pub fn skipped(&self) -> Vec<String> {
        let words = |((engine, reason), cases): ((Engine, &str), Vec<&Case>)| {
            let ran = self.cases.iter().any(|it| it.engine == engine && it.run_was_made());
            let names: Vec<&str> = cases.iter().map(|case| case.probe.as_str()).collect();
            let names = if ran { format!(" ({})", names.join(", ")) } else { String::new() };
            format!("{} of {engine}{names}: {reason}", amount(cases.len(), "probe"))
        };
        let mut skips: BTreeMap<_, Vec<&Case>> = BTreeMap::new();
        for case in self.cases.iter().filter(|case| case.status == Status::Skipped) {
            let reason = case.reason.as_deref().unwrap_or_default();
            skips.entry((case.engine, reason)).or_default().push(case);
        }
        skips.into_iter().map(words).collect()
    }

    /// A single run as a suite of one case.
    pub fn of_run(
        report: &Report,
        command: String,
        file: String,
        page: impl Fn(&str) -> Option<&'static str>,
    ) -> Self {
        let case = Case {
            probe: "run".to_owned(),
            engine: report.run.spec.engine(),
            description: super::document::headline(report),
            file: None,
            command,
            expected: Verdict::Clean.to_string(),
            got: report.verdict.to_string(),
            status: Status::of(report.verdict),
            reason: None,
            findings: findings(report),
            versions: report.run.versions.clone(),
            seconds: 0.0,
            run_dir: None,
        };
        Self::new(vec![case], vec![], file, page)
    }

    /// Number of cases with this status.
    pub fn count(&self, status: Status) -> usize {
        self.cases.iter().filter(|case| case.status == status).count()
    }

    /// The suite as JSON, with a line feed at the end.
    ///
    /// # Errors
    /// Never for suites that [`Suite::new`] makes.
    pub fn to_json(&self) -> serde_json::Result<String> {
        zprobe_model::visible::json(self)
    }
}

impl Acceptance {
    /// The acceptance in words: `accepted until 2026-12-31: the fix is not released`.
    pub fn describe(&self) -> String {
        format!("accepted until {}: {}", self.expires, self.reason)
    }
}

impl Status {
    /// The status of a run that should be clean.
    pub fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Clean => Self::Passed,
            Verdict::Findings => Self::Failed,
            Verdict::Crashed => Self::Crashed,
            Verdict::Inconclusive => Self::Inconclusive,
        }
    }

    /// The verdict that counts as much as this status in the exit code of a suite.
    const fn verdict(self) -> Verdict {
        match self {
            Self::Passed | Self::Accepted | Self::Skipped => Verdict::Clean,
            Self::Failed => Verdict::Findings,
            Self::Crashed | Self::NotRun => Verdict::Crashed,
            Self::Inconclusive => Verdict::Inconclusive,
        }
    }

    /// True if somebody has to do something about it.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Failed | Self::Crashed | Self::Inconclusive | Self::NotRun)
    }
}

impl Case {
    /// The engine and the probe: `deepspeed/stage1-bf16`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.engine, self.probe)
    }

    /// True if there was a run.
    pub fn run_was_made(&self) -> bool {
        !matches!(self.status, Status::NotRun | Status::Skipped)
    }

    /// Reason why the case is not well, in a line: `expected clean, got ZP101 boundary-leak`.
    pub fn complaint(&self) -> String {
        match &self.reason {
            Some(reason) => reason.clone(),
            None => format!("expected {}, got {}", self.expected, self.got),
        }
    }
}

/// The findings of a report, none of them accepted.
pub fn findings(report: &Report) -> Vec<CaseFinding> {
    let findings = report.findings.iter().cloned();
    findings.map(|finding| CaseFinding { finding, accepted: None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_weigh_more_than_crashes_and_these_more_than_doubt() {
        use Status::{Accepted, Crashed, Failed, Inconclusive, NotRun, Passed, Skipped};
        let code = |statuses: &[Status]| exit(statuses.iter().copied()).code();
        assert_eq!(code(&[Passed, Crashed, Failed, Inconclusive]), 1);
        assert_eq!(code(&[Inconclusive, Crashed, Passed]), 3);
        assert_eq!(code(&[NotRun, Passed]), 3);
        assert_eq!(code(&[Passed, Inconclusive, Accepted]), 4);
        assert_eq!(code(&[Passed, Accepted, Skipped]), 0);
        assert_eq!(code(&[]), 0);
    }

    #[test]
    fn where_nothing_ran_the_exit_code_says_so() {
        assert_eq!(exit([Status::NotRun, Status::Skipped]).code(), 2);
        assert_eq!(exit([Status::Skipped]).code(), 2);
    }
}
