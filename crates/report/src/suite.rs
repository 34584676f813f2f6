//! The report on a suite of runs: the expected and the actual result of each run.
//!
//! `zprobe check --output-format json` prints a [`Suite`]; its JSON Schema is checked in as
//! `schema/check.v1.schema.json`. A single run is a suite of one case, so that each form for other programs needs only
//! one renderer.

mod causes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::causes::Cause;
use super::words::amount;
use super::{Exit, Finding, Report, Schema, Severity, Verdict};
use zprobe_model::spec::{Engine, any_engine, any_engine_schema, named_enum};

/// A suite of probes and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suite {
    /// The version of the format.
    pub schema: Schema,
    /// The exit code of the process that ran the suite.
    pub exit_code: u8,
    /// The reason why no probe of the real engines was run, so that the suite says nothing about these engines; `None`
    /// if such a probe was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchecked: Option<String>,
    /// All cases, in the order in which they were run.
    pub cases: Vec<Case>,
    /// The entries of the baseline that need attention.
    pub notices: Vec<Notice>,
    /// The duration of all cases, in seconds.
    pub seconds: f64,
    /// The path of the configuration file, which stands in for a case that has no file of its own.
    pub file: String,
    /// The documentation of the rules that have findings, by code.
    #[serde(skip)]
    pub pages: BTreeMap<String, &'static str>,
}

/// A probe on one engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Case {
    /// The name of the probe.
    pub probe: String,
    /// The engine under test.
    #[serde(deserialize_with = "any_engine")]
    #[schemars(schema_with = "any_engine_schema")]
    pub engine: Engine,
    /// The description of the probe: which situation it tests.
    pub description: String,
    /// The path of the probe's file; `None` for a probe that is part of zprobe.
    pub file: Option<String>,
    /// The command line that runs only this case.
    pub command: String,
    /// The expected result, in a few words.
    pub expected: String,
    /// The actual result, in a few words.
    pub got: String,
    /// The status of the case.
    pub status: Status,
    /// The reason why the case was skipped or could not be run, and what to do; `None` if the case was run.
    pub reason: Option<String>,
    /// The findings of the run.
    pub findings: Vec<CaseFinding>,
    /// The versions of the packages that ran, by name.
    pub versions: BTreeMap<String, String>,
    /// The duration of the case, in seconds.
    pub seconds: f64,
    /// The directory in which the run is recorded; `None` if the recording was not kept.
    pub run_dir: Option<PathBuf>,
}

named_enum! {
    /// The status of a case.
    pub enum Status {
        /// The result was as expected.
        Passed = "passed",
        /// The result was not as expected, and the baseline accepts all findings.
        Accepted = "accepted",
        /// The result was not as expected.
        Failed = "failed",
        /// The engine crashed or hung.
        Crashed = "crashed",
        /// The run ended without an answer.
        Inconclusive = "inconclusive",
        /// The case could not be run.
        NotRun = "not-run",
        /// The engine is not installed or cannot run the case on this machine, or an earlier failure ended the suite.
        Skipped = "skipped",
    }
}

/// A finding, and whether the baseline accepts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaseFinding {
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
    /// The acceptance by the baseline; `None` if the finding is not accepted.
    pub accepted: Option<Acceptance>,
}

/// The acceptance of a finding: the reason, and the last day on which it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Acceptance {
    /// The reason for accepting the finding.
    pub reason: String,
    /// The last day on which the finding is accepted, as `2026-12-31`.
    pub expires: String,
}

/// An entry of the baseline that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Notice {
    /// The kind of the problem.
    pub kind: NoticeKind,
    /// The path of the baseline's file.
    pub file: String,
    /// The line of the entry, from 1.
    pub line: usize,
    /// One sentence that describes the problem.
    pub message: String,
}

named_enum! {
    /// A problem with an entry of a baseline.
    pub enum NoticeKind {
        /// The entry would accept a finding, but has expired.
        Expired = "expired",
        /// The entry matches none of the findings.
        Unused = "unused",
    }
}

impl NoticeKind {
    /// The severity of the problem: an expired entry is an error, because the entry no longer accepts its finding.
    pub const fn severity(self) -> Severity {
        match self {
            Self::Expired => Severity::Error,
            Self::Unused => Severity::Warning,
        }
    }
}

/// The exit code for the statuses of several cases: the code of the worst status, or [`Exit::NothingRan`] if every case
/// was skipped or could not be run.
pub fn exit(statuses: impl IntoIterator<Item = Status>) -> Exit {
    let statuses: Vec<Status> = statuses.into_iter().collect();
    let none = statuses.iter().all(|it| matches!(it, Status::NotRun | Status::Skipped));
    if none && !statuses.is_empty() {
        return Exit::NothingRan;
    }
    Verdict::worst(statuses.into_iter().map(Status::verdict)).map_or(Exit::Clean, Exit::from)
}

impl Suite {
    /// A suite of these cases. `page` finds the documentation of a rule by its code; `file` stands in for cases without
    /// a file of their own.
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

    /// The suite, marked as one that says nothing about the real engines, with the reason `why`. Its exit code is then
    /// never that of a success.
    #[must_use]
    pub fn without_answer(mut self, why: String) -> Self {
        self.unchecked = Some(why);
        self.exit_code = self.exit().code();
        self
    }

    /// The exit code of the process. A suite in which all is well but no real engine was checked has the code of
    /// [`Exit::NothingRan`].
    pub fn exit(&self) -> Exit {
        match exit(self.cases.iter().map(|case| case.status)) {
            Exit::Clean if self.unchecked.is_some() => Exit::NothingRan,
            exit => exit,
        }
    }

    /// The skipped cases in words, by engine and reason: `2 probes of ddp (a, b): no torch`. The probes are named only
    /// if other probes of the engine were run.
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

    /// The number of cases with this status.
    pub fn count(&self, status: Status) -> usize {
        self.cases.iter().filter(|case| case.status == status).count()
    }

    /// The suite as JSON, with a line feed at the end.
    ///
    /// # Errors
    /// Suites that [`Suite::new`] makes never cause an error.
    pub fn to_json(&self) -> serde_json::Result<String> {
        zprobe_model::visible::json(self)
    }
}

impl CaseFinding {
    /// The file and the line that the finding is about: those of the user's script, or else the start of the probe's
    /// file. `None` for a probe that is part of zprobe.
    pub(crate) fn place<'a>(&'a self, case: &'a Case) -> Option<(&'a str, usize)> {
        let of_script = self.finding.location.as_ref().map(|it| (it.file.as_str(), it.line));
        of_script.or(case.file.as_deref().map(|file| (file, 1)))
    }
}

impl Acceptance {
    /// The acceptance in words: `accepted until 2026-12-31: the fix is not released`.
    pub fn describe(&self) -> String {
        format!("accepted until {}: {}", self.expires, self.reason)
    }
}

impl Status {
    /// The status of a case whose run should be clean.
    pub fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Clean => Self::Passed,
            Verdict::Findings => Self::Failed,
            Verdict::Crashed => Self::Crashed,
            Verdict::Inconclusive => Self::Inconclusive,
        }
    }

    /// The verdict whose exit code a suite with this status has.
    const fn verdict(self) -> Verdict {
        match self {
            Self::Passed | Self::Accepted | Self::Skipped => Verdict::Clean,
            Self::Failed => Verdict::Findings,
            Self::Crashed | Self::NotRun => Verdict::Crashed,
            Self::Inconclusive => Verdict::Inconclusive,
        }
    }

    /// True if a case with this status needs attention.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Failed | Self::Crashed | Self::Inconclusive | Self::NotRun)
    }
}

impl Case {
    /// The id of the case, made of the engine and the probe: `deepspeed/stage1-bf16`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.engine, self.probe)
    }

    /// True if the case was run.
    pub fn run_was_made(&self) -> bool {
        !matches!(self.status, Status::NotRun | Status::Skipped)
    }

    /// The directory with the recording and the report of a case that needs attention; `None` if there is no report,
    /// because the case has a reason in place of findings.
    pub fn report_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref().filter(|_| self.status.is_bad() && self.reason.is_none())
    }

    /// The reason why the case needs attention, in one line: `expected clean, got ZP101 boundary-leak`.
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
