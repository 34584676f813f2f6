//! The links from findings to the places on the page that show them.

use super::weights::WeightPanel;
use crate::document::RankGroup;
use crate::{Family, Finding, Report};

/// The code of the rule about the weights of target tokens.
const TOKENS: &str = "ZP109";

/// A link to a place on the page.
pub(super) struct Link {
    pub text: String,
    pub target: String,
    /// The microbatch whose columns are highlighted at the target.
    pub microbatch: Option<usize>,
}

impl Link {
    /// A link to the matrix with this letter.
    pub fn to_matrix(letter: &str, microbatch: Option<usize>) -> Self {
        let (text, target) = (format!("weight matrix {letter}"), format!("matrix-{letter}"));
        Self { text, target, microbatch }
    }
}

/// The parts of the page to which findings can have links.
pub(super) struct Places<'a> {
    pub weights: &'a WeightPanel,
    pub has_hooks: bool,
    pub has_timeline: bool,
    pub ranks: &'a [RankGroup<'a>],
}

impl Places<'_> {
    /// The links to the places that show a finding.
    pub fn links(&self, report: &Report, finding: &Finding) -> Vec<Link> {
        let at_step = |step: usize| finding.step.is_none_or(|at| at == step);
        let mut links = Vec::new();
        if let Some(at) = self.weights.departed(finding.step, finding.rank) {
            let letter = &self.weights.matrices[at].letter;
            links.push(Link::to_matrix(letter, finding.microbatch));
        }
        let mut link = |text: String, target: String, microbatch: Option<usize>| {
            links.push(Link { text, target, microbatch });
        };
        if finding.code.as_str() == TOKENS && !report.tokens.is_empty() {
            link("target tokens".to_owned(), "tokens".to_owned(), None);
        }
        let differs = |row: &crate::Norms| row.agree == Some(false) && at_step(row.step);
        if let Some(row) = report.norms.iter().position(differs) {
            link("buffers that differ".to_owned(), format!("norm-{row}"), None);
        }
        let is_silent = |count: &crate::HookCount| !count.silent.is_empty() && at_step(count.step);
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
        // Findings about collectives and processes show in the outcomes of ranks and in the timeline.
        if matches!(finding.code.family(), Family::Collectives | Family::Run) {
            let ended_there = |group: &&RankGroup<'_>| {
                finding.rank.is_none_or(|rank| group.0.iter().any(|it| it.rank == rank))
            };
            let mut unfinished = self.ranks.iter().filter(|group| !group.first().finished);
            if let Some(group) = unfinished.find(ended_there) {
                link(
                    format!("end of {}", group.label()),
                    format!("rank-{}", group.first().rank),
                    None,
                );
            }
            if self.has_timeline {
                link("timeline".to_owned(), "timeline".to_owned(), None);
            }
        }
        links
    }
}
