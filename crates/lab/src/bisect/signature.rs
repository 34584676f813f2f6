//! The signature of a finding: by it the same bug is known again in another release.

use zprobe_report::words::matrix_text;
use zprobe_report::{Report, RuleCode, Verdict};
use zprobe_zoo::got;

/// The first finding of a report, and the weights that go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    code: RuleCode,
    name: String,
    /// Weights of the optimizer's input that are not as planned, in the first step in which some are not: a
    /// rank and its matrices each.
    weights: Vec<String>,
    /// Last line of a rank's account of its failure, where the finding is about one.
    failure: Option<String>,
}

/// Comparison of a report with a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The same finding with the same weights.
    Same,
    /// The gradients were read, and the finding is not there.
    Absent,
    /// No answer, for this reason.
    Unclear(String),
}

impl Signature {
    /// The signature of a report; none if nothing was found.
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

    /// Code and name: `ZP101 boundary-leak`.
    pub fn title(&self) -> String {
        format!("{} {}", self.code, self.name)
    }

    /// Looks for the finding in another report.
    pub fn seen_in(&self, report: &Report) -> Seen {
        if report.findings.iter().any(|finding| finding.code == self.code) {
            return if Self::of_code(report, self.code, &self.name) == *self {
                Seen::Same
            } else {
                Seen::Unclear(format!("{}, but not with the same weights or words", got(report)))
            };
        }
        match report.verdict {
            Verdict::Clean | Verdict::Findings => Seen::Absent,
            Verdict::Crashed | Verdict::Inconclusive => Seen::Unclear(got(report)),
        }
    }
}
