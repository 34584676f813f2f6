//! The report as one HTML page, to be read in a browser or attached to a bug report.
//!
//! The page is a file of its own: style and script are inside, it asks for nothing from the
//! network, and its policy forbids the browser to do so. Everything is drawn here, as tables and
//! SVG; the script only makes links light up their place and the timeline zoom. Whatever a rank or
//! an engine said is escaped by the template, and the policy lets no other script or style run.

mod buckets;
mod chart;
mod explanations;
mod findings;
mod form;
mod hooks;
mod labels;
mod lanes;
mod norms;
mod picture;
mod policy;
mod time_scale;
mod weights;

use askama::Template;

use self::buckets::Buckets;
use self::explanations::Explanation;
use self::findings::{Link, Places};
use self::hooks::Hooks;
use self::lanes::Lanes;
use self::norms::Norms;
use self::weights::Weights;
use crate::document::{Block, Document, MOST_APART, Section, Span, Topic, groups};
use crate::{Finding, Report, Severity, Verdict, timeline::Timeline};
use zprobe_model::trace::Trace;
use zprobe_model::visible::Visible;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Most ranks that are drawn one by one; more are drawn in groups that are alike.
const RANKS_SHOWN: usize = MOST_APART;

/// Data of the page's template.
#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    report: &'a Report,
    document: Document<'a>,
    style: &'static str,
    script: &'static str,
    policy: String,
    findings: Vec<(&'a Finding, Vec<Link>)>,
    weights: Weights,
    norms: Option<Norms>,
    buckets: Option<Buckets<'a>>,
    hooks: Option<Hooks<'a>>,
    lanes: Option<Lanes>,
    explanations: Vec<Explanation<'a>>,
}

/// The page of a report. The timeline is drawn from the times in `trace`, the recording that the
/// report was made of; everything else from the report. `explain` gives the documentation of a
/// rule, in Markdown, by its code.
///
/// # Errors
/// When the template cannot be filled in, which does not happen with a report.
pub fn html(
    report: &Report,
    trace: &Trace,
    explain: &dyn Fn(&str) -> Option<&'static str>,
) -> anyhow::Result<String> {
    page(&Visible::of(report)?, trace, &|code| explain(code))
}

/// The page of a report in which control characters are visible.
fn page<'a>(
    report: &'a Visible<Report>,
    trace: &Trace,
    explain: &dyn Fn(&str) -> Option<&'a str>,
) -> anyhow::Result<String> {
    let weights = Weights::new(report);
    let hooks = Hooks::new(report);
    let lanes = Lanes::new(&Timeline::new(trace));
    let explanations = explanations::of(report, explain);
    let ranks = groups(report);
    let places = Places {
        weights: &weights,
        has_hooks: hooks.is_some(),
        has_timeline: lanes.is_some(),
        ranks: &ranks,
    };
    let with_links = |finding: &'a Finding| (finding, places.links(report, finding));
    let findings = report.findings.iter().map(with_links).collect();
    let page = Page {
        style: STYLE,
        script: SCRIPT,
        policy: policy::policy(STYLE, SCRIPT),
        document: Document::of(report)?,
        findings,
        weights,
        norms: Norms::new(report),
        buckets: Buckets::new(report),
        hooks,
        lanes,
        explanations,
        report,
    };
    Ok(page.render()?)
}

impl Page<'_> {
    /// A sign beside the verdict, so that nobody has to tell colours apart.
    fn sign(&self) -> &'static str {
        match self.report.verdict {
            Verdict::Clean => "✓",
            Verdict::Findings => "✗",
            Verdict::Crashed => "!",
            Verdict::Inconclusive => "?",
        }
    }

    /// True if some rank did not finish.
    fn unfinished(&self) -> bool {
        self.report.ranks.iter().any(|rank| !rank.finished)
    }

    /// True if the page holds the documentation of a rule.
    fn is_explained(&self, code: &str) -> bool {
        self.explanations.iter().any(|known| known.code == code)
    }

    /// The sections about these topics that there are.
    fn about(&self, topics: &[Topic]) -> Vec<&Section<'_>> {
        topics.iter().filter_map(|topic| self.document.about(*topic)).collect()
    }

    /// True if the journey departs from the plan at a buffer, which the table of weights has a row for.
    fn departs_at_buffer(&self) -> bool {
        self.report.first_divergence.as_ref().is_some_and(|first| first.point.is_some())
    }
}
