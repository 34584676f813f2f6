//! Renders the report on a run or on a suite as one HTML page, to be read in a browser or attached to a bug report.
//!
//! The page is self-contained: style and script are inline, and its policy forbids network access. All tables and SVG
//! are drawn in Rust; the script only highlights the targets of links and zooms the timeline. The template escapes all
//! text from ranks and engines, and the policy allows no other script or style.

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
mod suite;
mod time_scale;
mod weights;

use askama::Template;

use self::buckets::BucketPanel;
use self::explanations::Explanations;
use self::findings::{Link, Places};
use self::hooks::HookPanel;
pub(super) use self::labels::moment;
use self::lanes::TimelinePanel;
use self::norms::NormPanel;
pub(super) use self::picture::classes;
pub use self::suite::suite_html;
use self::weights::WeightPanel;
use crate::document::{Block, Document, MOST_APART, Section, TextSpan, Topic, groups};
use crate::{Finding, Report, Severity, Verdict, timeline::Timeline};
use zprobe_model::spec::Model;
use zprobe_model::trace::Trace;
use zprobe_model::visible::Visible;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The largest number of ranks that are drawn one by one; more ranks are drawn in groups that are alike.
const RANKS_SHOWN: usize = MOST_APART;

/// The colour of the cells of a class in the light scheme, as `#dcebf8`; white for cells without a colour.
pub(super) fn colour(class: &str) -> &'static str {
    let after = STYLE.split_once(&format!("--{class}: ")).map_or("", |(_, after)| after);
    after.get(..7).filter(|colour| colour.starts_with('#')).unwrap_or("#ffffff")
}

/// The parts that every page has: its style, its script, its policy and the verdict.
struct Frame {
    style: &'static str,
    script: &'static str,
    policy: String,
    /// The verdict, which gives the colour and the sign.
    verdict: Verdict,
    /// The verdict in one word or two.
    answer: &'static str,
    /// The reason for the verdict, in one line.
    headline: String,
}

/// The data of the template for a single run.
#[derive(Template)]
#[template(path = "page.html")]
struct HtmlPage<'a> {
    report: &'a Report,
    document: Document<'a>,
    frame: Frame,
    /// The command of the user's script; `None` without a script.
    script: Option<String>,
    findings: Vec<(&'a Finding, Vec<Link>)>,
    weights: WeightPanel,
    norms: Option<NormPanel>,
    buckets: Option<BucketPanel<'a>>,
    hooks: Option<HookPanel<'a>>,
    lanes: Option<TimelinePanel>,
    explanations: Explanations<'a>,
}

/// Renders the page of a report. The timeline is drawn from the times in `trace`, the recording that the report was
/// made of; everything else comes from the report. `explain` returns the documentation of a rule in Markdown, by its
/// code.
///
/// # Errors
/// If the template cannot be filled in, which does not happen with a report.
pub fn html(
    report: &Report,
    trace: &Trace,
    explain: &dyn Fn(&str) -> Option<&'static str>,
) -> anyhow::Result<String> {
    page(&Visible::of(report)?, trace, &|code| explain(code))
}

/// Renders the page of a report in which control characters are already visible.
fn page<'a>(
    report: &'a Visible<Report>,
    trace: &Trace,
    explain: &dyn Fn(&str) -> Option<&'a str>,
) -> anyhow::Result<String> {
    let weights = WeightPanel::new(report);
    let hooks = HookPanel::new(report);
    let lanes = TimelinePanel::new(&Timeline::new(trace));
    let explanations = Explanations::of(&report.findings, explain);
    let ranks = groups(report);
    let places = Places {
        weights: &weights,
        has_hooks: hooks.is_some(),
        has_timeline: lanes.is_some(),
        ranks: &ranks,
    };
    let with_links = |finding: &'a Finding| (finding, places.links(report, finding));
    let findings = report.findings.iter().map(with_links).collect();
    let document = Document::of(report)?;
    let verdict = report.verdict;
    let script = report.run.spec.script().and_then(|_| document.setting.first().cloned());
    let page = HtmlPage {
        frame: Frame::new(verdict, verdict.name(), document.headline.clone()),
        script,
        document,
        findings,
        weights,
        norms: NormPanel::new(report),
        buckets: BucketPanel::new(report),
        hooks,
        lanes,
        explanations,
        report,
    };
    Ok(page.render()?)
}

impl Frame {
    fn new(verdict: Verdict, answer: &'static str, headline: String) -> Self {
        let policy = policy::policy(STYLE, SCRIPT);
        Self { style: STYLE, script: SCRIPT, policy, verdict, answer, headline }
    }

    /// The sign next to the verdict, so that no reader depends on its colour.
    fn sign(&self) -> &'static str {
        match self.verdict {
            Verdict::Clean => "✓",
            Verdict::Findings => "✗",
            Verdict::Crashed => "!",
            Verdict::Inconclusive => "?",
        }
    }
}

impl HtmlPage<'_> {
    /// The lines about the settings, without the command of the script.
    fn settings(&self) -> &[String] {
        &self.document.setting[usize::from(self.script.is_some())..]
    }

    /// True if some rank did not finish.
    fn unfinished(&self) -> bool {
        self.report.ranks.iter().any(|rank| !rank.finished)
    }

    /// The existing sections about these topics.
    fn about(&self, topics: &[Topic]) -> Vec<&Section<'_>> {
        topics.iter().filter_map(|topic| self.document.about(*topic)).collect()
    }

    /// True if the journey first departs from the plan at a buffer, which has a row in the table of weights.
    fn departs_at_buffer(&self) -> bool {
        self.report.first_divergence.as_ref().is_some_and(|first| first.point.is_some())
    }
}
