//! Renders the report on a suite as one HTML page: the probes that need attention with their findings, then the results
//! and the times of all probes.

use std::collections::HashMap;

use askama::Template;

use super::Frame;
use super::explanations::Explanations;
use super::findings::Link;
use super::picture::letters;
use super::weights::{DrawnMatrix, WeightPanel};
use crate::document::TextSpan;
use crate::render::suite::{in_short, text::summary};
use crate::suite::{Case, Status, Suite};
use crate::words::amount;
use crate::{Exit, Finding, Report, Severity, Verdict};
use zprobe_model::spec::Engine;
use zprobe_model::visible::Visible;

/// The number of probes that the page names as the slowest.
const SLOWEST: usize = 3;

/// The data of the page's template.
#[derive(Template)]
#[template(path = "suite.html")]
struct SuitePage<'a> {
    frame: Frame,
    suite: &'a Suite,
    /// The probes that need attention, one for each cause, then those whose findings are accepted.
    noted: Vec<Noted<'a>>,
    explanations: Explanations<'a>,
}

/// A probe with details, and the other probes with the same cause.
struct Noted<'a> {
    case: &'a Case,
    others: Vec<&'a Case>,
    findings: Vec<(&'a Finding, Vec<Link>)>,
    /// The weights that are not as planned, of the optimizer's input if possible.
    matrix: Option<DrawnMatrix>,
}

/// Renders the page of a suite. `report` returns the report on the run of a case that needs attention; `None` if the
/// run left no report.
///
/// # Errors
/// The errors of `report`. If the template cannot be filled in, which does not happen with a suite.
pub fn suite_html(
    suite: &Suite,
    report: impl Fn(&Case) -> anyhow::Result<Option<Report>>,
) -> anyhow::Result<String> {
    // The documentation of rules is zprobe's own text, so nothing in it has to be made visible.
    let (pages, suite) = (&suite.pages, Visible::of(suite)?);
    let explain = |code: &str| pages.get(code).copied();
    let causes = suite.causes().into_iter().map(|cause| (cause.first, cause.others));
    let accepted = suite.cases.iter().filter(|case| case.status == Status::Accepted);
    let mut noted = Vec::new();
    let mut letter = (0..).map(letters);
    for (case, others) in causes.chain(accepted.map(|case| (case, vec![]))) {
        let report = report(case)?.map(|report| Visible::of(&report)).transpose()?;
        let mut findings: Vec<(&Finding, Vec<Link>)> =
            case.findings.iter().map(|it| (&it.finding, vec![])).collect();
        let first = findings.first_mut();
        let mut matrix = report.and_then(|report| {
            let mut panel = WeightPanel::new(&report);
            let (step, rank) = first.as_ref().map_or((None, None), |(it, _)| (it.step, it.rank));
            Some(panel.matrices.swap_remove(panel.departed(step, rank)?))
        });
        if let (Some(matrix), Some((finding, links))) = (&mut matrix, first) {
            matrix.letter = letter.next().unwrap_or_default();
            links.push(Link::to_matrix(&matrix.letter, finding.microbatch));
        }
        noted.push(Noted { case, others, findings, matrix });
    }
    let (verdict, answer) = match suite.exit() {
        Exit::Clean => (Verdict::Clean, "passed"),
        Exit::Crashed => (Verdict::Crashed, "crashed"),
        Exit::Inconclusive => (Verdict::Inconclusive, "inconclusive"),
        Exit::NothingRan => (Verdict::Inconclusive, "not checked"),
        _ => (Verdict::Findings, "failed"),
    };
    let all = suite.cases.iter().flat_map(|case| &case.findings).map(|it| &it.finding);
    let page = SuitePage {
        frame: Frame::new(verdict, answer, summary(&suite)),
        explanations: Explanations::of(all, &explain),
        suite: &suite,
        noted,
    };
    Ok(page.render()?)
}

impl SuitePage<'_> {
    /// True if the weights of some case are drawn.
    fn has_weights(&self) -> bool {
        self.noted.iter().any(|noted| noted.matrix.is_some())
    }

    /// The versions of the packages that ran, one line for each engine.
    fn versions(&self) -> Vec<String> {
        let of = |engine: &Engine| {
            let mut cases = self.suite.cases.iter().filter(|case| case.engine == *engine);
            let versions =
                cases.find_map(|it| (!it.versions.is_empty()).then_some(&it.versions))?;
            let packages = versions.iter().map(|(name, version)| format!("{name} {version}"));
            Some(format!("{engine}: {}", packages.collect::<Vec<_>>().join(", ")))
        };
        Engine::ALL.iter().filter_map(of).collect()
    }

    /// The names of the slowest probes with their times; empty if there are hardly more probes.
    fn slowest(&self) -> String {
        let mut cases: Vec<&Case> =
            self.suite.cases.iter().filter(|it| it.run_was_made()).collect();
        cases.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        if cases.len() <= SLOWEST {
            return String::new();
        }
        let names = cases[..SLOWEST].iter().map(|it| format!("{} ({:.1} s)", it.id(), it.seconds));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The cases in the order in which they were run, each with the number of its details on the page.
    fn rows(&self) -> Vec<(&Case, Option<usize>)> {
        let mut place: HashMap<String, usize> = HashMap::new();
        for (number, noted) in self.noted.iter().enumerate() {
            let cases = [noted.case].into_iter().chain(noted.others.iter().copied());
            place.extend(cases.map(|case| (case.id(), number)));
        }
        self.suite.cases.iter().map(|case| (case, place.get(&case.id()).copied())).collect()
    }
}

impl Noted<'_> {
    /// The other probes with the same cause, in words.
    fn also(&self) -> String {
        let ids: Vec<String> = self.others.iter().map(|case| case.id()).collect();
        let count = amount(ids.len(), "other probe");
        format!("and {count} with the same cause: {}", ids.join(", "))
    }

    /// The days until which findings are accepted, and the reasons.
    fn accepted(&self) -> Vec<String> {
        let accepted = self.case.findings.iter().filter_map(|it| {
            Some(format!("{} {}", it.finding.code, it.accepted.as_ref()?.describe()))
        });
        accepted.collect()
    }
}

impl Status {
    /// The class of the status on the page, which gives its colour.
    fn class(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Accepted | Self::Skipped => "unread",
            _ => "off",
        }
    }

    /// The sign of the status on the page, so that no reader depends on its colour.
    fn sign(self) -> &'static str {
        match self {
            Self::Passed => "✓",
            Self::Accepted | Self::Skipped => "–",
            _ => "✗",
        }
    }
}
