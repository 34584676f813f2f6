//! Compares the result of a run with the expected result.

use super::{Expectation, Release, ZooRow};
use zprobe_report::{OwnWords, Report, Verdict};

/// The result of a run, compared with the expected result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The result of the run, in a few words.
    pub got: String,
    /// True if the result is the expected one.
    pub ok: bool,
}

impl ZooRow {
    /// Compares a report with the expectation for one of the releases. If the release has the bug, the finding must
    /// also be recognised as this known bug.
    pub fn judge(&self, release: &Release, report: &Report, said: &OwnWords) -> Judgement {
        let mut judgement = release.expect.judge(report, said);
        let mut known = report.findings.iter().flat_map(|finding| &finding.known);
        if self.known.is_some() && release.expect != Expectation::Clean && judgement.ok {
            judgement.ok = known.any(|known| known.name == self.name);
            if !judgement.ok {
                judgement.got.push_str(", not recognised as a known bug");
            }
        }
        judgement
    }
}

impl Expectation {
    /// Compares a report, and the words of the ranks if they crashed, with this expectation.
    pub fn judge(&self, report: &Report, said: &OwnWords) -> Judgement {
        let first = report.findings.first().map(|finding| finding.code);
        let ok = match self {
            Expectation::Clean => report.verdict == Verdict::Clean,
            Expectation::Finding(code) => first == Some(*code),
            Expectation::Crash { message, finding } => {
                report.verdict == Verdict::Crashed
                    && (said.contain(message) || words(report).any(|text| text.contains(message)))
                    && finding.is_none_or(|code| first == Some(code))
            }
        };
        Judgement { got: got(report), ok }
    }
}

/// The result in a report, in a few words: `ZP101 boundary-leak`, `clean`, `crashed: …`.
pub fn got(report: &Report) -> String {
    let mut parts: Vec<String> = report
        .findings
        .iter()
        .map(|finding| format!("{} {}", finding.code, finding.name))
        .collect();
    match report.verdict {
        Verdict::Findings => {}
        Verdict::Crashed => {
            let failure = report.ranks.iter().find_map(|rank| rank.failure.as_deref());
            parts.push(match failure.and_then(|text| text.lines().next_back()) {
                Some(line) => format!("crashed: {line}"),
                None => Verdict::Crashed.to_string(),
            });
        }
        verdict => parts.push(verdict.to_string()),
    }
    parts.join(", ")
}

/// All texts of a report that may hold a known phrase of an engine.
pub(super) fn words(report: &Report) -> impl Iterator<Item = &str> {
    let ranks = report.ranks.iter().flat_map(|rank| [&rank.failure, &rank.stderr]);
    let findings = report.findings.iter().flat_map(|finding| {
        [&finding.message].into_iter().chain(&finding.evidence).map(String::as_str)
    });
    ranks.flatten().map(String::as_str).chain(findings)
}
