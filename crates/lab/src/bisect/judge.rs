//! The judge of trials, which decides whether a release or commit shows the finding of the search.

use anyhow::{Context as _, Result, ensure};
use schemars::JsonSchema;
use serde::Serialize;

use super::search::TrialMark;
use super::signature::{FindingSignature, SignatureMatch};
use zprobe_report::Report;
use zprobe_zoo::got;

/// The judge of one search. It knows the finding from the start, or learns it at the bad end.
#[derive(Clone, Debug)]
pub struct Judge {
    signature: Option<FindingSignature>,
    /// True if the search is for the first release or commit without the finding.
    fixed: bool,
}

/// The verdict on a trial of a release or commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TrialVerdict {
    /// True if the release or commit shows the finding; `None` if it could not be tested.
    pub shows: Option<bool>,
    /// The result of the run in a few words, or the reason why there is no result.
    #[serde(rename = "said")]
    pub outcome: String,
}

impl Judge {
    /// A judge that knows the finding, or will learn it at the bad end.
    pub fn new(signature: Option<FindingSignature>, fixed: bool) -> Self {
        Self { signature, fixed }
    }

    /// Learns the finding from the run at the bad end, whose label is `name`, unless the finding is known.
    ///
    /// # Errors
    /// When the run at the bad end has no finding.
    pub fn learn(&mut self, bad: &Result<Report>, name: &str) -> Result<()> {
        if let (None, Ok(report)) = (&self.signature, bad) {
            let signature = FindingSignature::of(report);
            self.signature = Some(signature.with_context(|| {
                format!(
                    "{name} is {}, so it cannot be the bad end; choose another --bad",
                    got(report)
                )
            })?);
        }
        Ok(())
    }

    /// The code and name of the finding; empty where the finding is unknown.
    pub fn finding(&self) -> String {
        self.signature.as_ref().map(FindingSignature::title).unwrap_or_default()
    }

    /// The verdict on a run, or on the reason why there is no run.
    pub fn verdict(&self, report: Result<Report>) -> TrialVerdict {
        let (shows, outcome) = match (report, &self.signature) {
            (Err(error), _) => (None, format!("{error:#}")),
            (Ok(report), None) => (None, got(&report)),
            (Ok(report), Some(signature)) => match signature.seen_in(&report) {
                SignatureMatch::Same => (Some(true), got(&report)),
                SignatureMatch::Absent => (Some(false), got(&report)),
                SignatureMatch::Unclear(reason) => (None, reason),
            },
        };
        TrialVerdict { shows, outcome }
    }

    /// The mark of a trial, which tells whether it is like the old or like the new end of the search.
    pub fn mark(&self, shows: Option<bool>) -> TrialMark {
        match shows {
            Some(shows) if shows == self.fixed => TrialMark::Old,
            Some(_) => TrialMark::New,
            None => TrialMark::Skipped,
        }
    }
}

impl TrialVerdict {
    /// The verdict in words, for example `bad: ZP101 boundary-leak`.
    pub fn in_words(&self) -> String {
        let word = match self.shows {
            Some(true) => "bad",
            Some(false) => "good",
            None => "skipped",
        };
        format!("{word}: {}", self.outcome)
    }

    /// Refuses an end whose verdict contradicts its flag; `name` is the label of the end.
    ///
    /// # Errors
    /// When the verdict contradicts the flag.
    pub fn is_end(&self, name: &str, is_bad: bool) -> Result<()> {
        let flag = if is_bad { "--bad" } else { "--good" };
        ensure!(
            self.shows == Some(is_bad),
            "{name} cannot be the {flag} end: {}; choose another",
            self.in_words()
        );
        Ok(())
    }
}
