//! Findings, with links to the places on the page that show them.

use super::explanations::Explanation;
use super::labels;
use super::ranks::RankGroup;
use super::weights::Weights;
use crate::report::render::concise;
use crate::report::words::{abridged, amount};
use crate::report::{self, Family, Report, Severity};

/// A finding.
pub(super) struct Finding<'a> {
    pub finding: &'a report::Finding,
    pub place: String,
    pub is_warning: bool,
    /// Links to the places that show it.
    pub links: Vec<Link>,
    /// True if the page holds the documentation of the rule.
    pub is_explained: bool,
    pub consequences: Vec<Consequence<'a>>,
}

/// A consequence of a finding.
pub(super) struct Consequence<'a> {
    pub consequence: &'a report::Consequence,
    pub is_explained: bool,
}

/// A link to a place on the page.
pub(super) struct Link {
    pub text: String,
    pub target: String,
    /// Microbatch whose columns are marked there.
    pub microbatch: Option<usize>,
}

/// First departure of the journey from the plan.
pub(super) struct Place<'a> {
    pub at: String,
    /// True if it is a buffer, which the journey has a row for.
    pub is_buffer: bool,
    /// Words on what was right before it.
    pub before: String,
    pub function: Option<&'a str>,
    pub params: Option<String>,
}

/// The first divergence of a report.
pub(super) fn divergence(report: &Report) -> Option<Place<'_>> {
    let first = report.first_divergence.as_ref()?;
    let what = match (first.point, first.bucket) {
        (Some(point), _) => labels::moment(report, point, first.microbatch),
        (None, Some(flush)) => format!("flush {flush} of the bucket"),
        (None, None) => "the gradient hooks".to_owned(),
    };
    let ranks = labels::ranks(&first.ranks, report.ranks.len());
    Some(Place {
        at: format!("{what}, step {}, {ranks}", first.step),
        is_buffer: first.point.is_some(),
        before: match first.right_before {
            0 => "no buffer that could be read".to_owned(),
            count => format!("{} as planned", amount(count, "station")),
        },
        function: first.function.as_deref(),
        params: first.params.as_ref().map(|params| abridged(params)),
    })
}

/// Other parts of the page, to which findings have links.
pub(super) struct Places<'a> {
    pub weights: &'a Weights,
    pub has_hooks: bool,
    pub has_timeline: bool,
    pub ranks: &'a [RankGroup<'a>],
    pub explanations: &'a [Explanation<'a>],
}

/// Every finding of a report.
pub(super) fn of<'a>(report: &'a Report, places: &Places<'_>) -> Vec<Finding<'a>> {
    let is_explained = |code: &str| places.explanations.iter().any(|known| known.code == code);
    let view = |finding: &'a report::Finding| Finding {
        place: concise::place(finding),
        is_warning: finding.severity == Severity::Warning,
        links: places.links(report, finding),
        is_explained: is_explained(&finding.code),
        consequences: finding
            .consequences
            .iter()
            .map(|consequence| Consequence {
                consequence,
                is_explained: is_explained(&consequence.code),
            })
            .collect(),
        finding,
    };
    report.findings.iter().map(view).collect()
}

impl Places<'_> {
    /// Links to the places that show a finding.
    fn links(&self, report: &Report, finding: &report::Finding) -> Vec<Link> {
        let at_step = |step: usize| finding.step.is_none_or(|at| at == step);
        let mut links = Vec::new();
        let mut link = |text: String, target: String, microbatch: Option<usize>| {
            links.push(Link { text, target, microbatch });
        };
        if let Some(at) = self.weights.departed(finding.step, finding.rank) {
            let letter = &self.weights.matrices[at].letter;
            let target = format!("matrix-{letter}");
            link(format!("weight matrix {letter}"), target, finding.microbatch);
        }
        let differs = |row: &report::Norms| row.agree == Some(false) && at_step(row.step);
        if let Some(row) = report.norms.iter().position(differs) {
            link("buffers that differ".to_owned(), format!("norm-{row}"), None);
        }
        let is_silent = |count: &report::HookCount| !count.silent.is_empty() && at_step(count.step);
        let about_hooks = finding.code.family() == Family::Hooks;
        if self.has_hooks && (about_hooks || report.hooks.counts.iter().any(is_silent)) {
            link("hooks".to_owned(), "hooks".to_owned(), None);
        }
        let flush = finding.bucket.and_then(|number| {
            report.buckets.iter().position(|flush| flush.flush == number && at_step(flush.step))
        });
        if let Some(row) = flush {
            let number = report.buckets[row].flush;
            link(format!("flush {number}"), format!("flush-{row}"), None);
        }
        // For collectives and processes, the ends of ranks and the timeline show what happened.
        if matches!(finding.code.family(), Family::Collectives | Family::Run) {
            let ended_there = |group: &&RankGroup<'_>| {
                finding.rank.is_none_or(|rank| group.members.contains(&rank))
            };
            let mut unfinished = self.ranks.iter().filter(|group| !group.rank.finished);
            if let Some(group) = unfinished.find(ended_there) {
                link(format!("end of {}", group.label), format!("rank-{}", group.members[0]), None);
            }
            if self.has_timeline {
                link("timeline".to_owned(), "timeline".to_owned(), None);
            }
        }
        links
    }
}
