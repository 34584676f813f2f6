//! The signature of a finding, by which the same bug is recognised in another release.

use zprobe_report::words::matrix_text;
use zprobe_report::{Report, RuleCode, Verdict};
use zprobe_zoo::got;

/// The first finding of a report, and the weights that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindingSignature {
    code: RuleCode,
    name: String,
    /// The wrong weights of the optimizer's input, in the first step that has any: an entry for each rank, with its
    /// matrices.
    weights: Vec<String>,
    /// The last line of a rank's error message, if the finding is about a crash.
    failure: Option<String>,
}

/// The result of comparing a report with a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureMatch {
    /// The report has the same finding with the same weights.
    Same,
    /// The gradients were read, and the report does not have the finding.
    Absent,
    /// The comparison gave no answer, for this reason.
    Unclear(String),
}

impl FindingSignature {
    /// The signature of a report's first finding; `None` if the report has no findings.
    pub fn of(report: &Report) -> Option<Self> {
        let main = report.findings.first()?;
        Some(Self::of_code(report, main.code, &main.name))
    }

    fn of_code(report: &Report, code: RuleCode, name: &str) -> Self {
        let point = report.run.spec.last_word();
        let wrong = || report.contributions.iter().filter(|it| it.point == point && !it.as_planned);
        let first = wrong().map(|entry| entry.step).min();
        let mut weights: Vec<String> = wrong()
            .filter(|entry| Some(entry.step) == first)
            .map(|entry| {
                let (weights, leftover) =
                    (matrix_text(&entry.weights), matrix_text(&entry.leftover));
                format!("rank {}: {weights} {leftover}", entry.rank)
            })
            .collect();
        weights.sort();
        weights.dedup();
        let failure = report.ranks.iter().find_map(|rank| rank.failure.as_deref());
        let failure = failure.and_then(|text| text.lines().next_back()).map(str::to_owned);
        let is_crash = weights.is_empty() && report.verdict == Verdict::Crashed;
        Self { code, name: name.to_owned(), weights, failure: failure.filter(|_| is_crash) }
    }

    /// The code and name of the finding: `ZP101 boundary-leak`.
    pub fn title(&self) -> String {
        format!("{} {}", self.code, self.name)
    }

    /// Searches for the finding in another report.
    pub fn seen_in(&self, report: &Report) -> SignatureMatch {
        if report.findings.iter().any(|finding| finding.code == self.code) {
            return if Self::of_code(report, self.code, &self.name) == *self {
                SignatureMatch::Same
            } else {
                SignatureMatch::Unclear(format!(
                    "{}, but with other weights or another error",
                    got(report)
                ))
            };
        }
        match report.verdict {
            Verdict::Clean | Verdict::Findings => SignatureMatch::Absent,
            Verdict::Crashed | Verdict::Inconclusive => SignatureMatch::Unclear(got(report)),
        }
    }
}
