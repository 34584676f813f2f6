//! Endings of ranks; of many, those that ended alike together.

use super::{Block, Section, Topic};
use crate::report::words::counted;
use crate::report::{Rank, Report};

/// Most ranks that are told one by one.
pub const MOST_APART: usize = 16;

/// Ranks that ended alike; there is at least one.
pub struct RankGroup<'a>(pub Vec<&'a Rank>);

/// Section on the last action of every rank.
pub(super) fn section(report: &Report) -> Section<'_> {
    let blocks = vec![Block::Ranks(groups(report))];
    let is_detail = report.ranks.iter().all(|rank| rank.finished);
    Section { is_detail, ..Section::new(Topic::Ranks, "What every rank did last", blocks) }
}

/// All ranks of a report. Of many, those that did not finish come first.
pub fn groups(report: &Report) -> Vec<RankGroup<'_>> {
    let many = report.ranks.len() > MOST_APART;
    let mut groups: Vec<RankGroup<'_>> = Vec::new();
    for rank in &report.ranks {
        let end = |rank: &Rank| (rank.outcome, rank.finished);
        let alike = |known: &Rank| end(known) == end(rank) && known.last == rank.last;
        match groups.iter_mut().find(|known| many && alike(known.first())) {
            Some(known) => known.0.push(rank),
            None => groups.push(RankGroup(vec![rank])),
        }
    }
    if many {
        groups.sort_by_key(|group| group.first().finished);
    }
    groups
}

impl<'a> RankGroup<'a> {
    /// The first of the ranks, which stands for all.
    pub fn first(&self) -> &'a Rank {
        self.0[0]
    }

    /// The ranks in words: `rank 0`.
    pub fn label(&self) -> String {
        counted("rank", &self.0.iter().map(|rank| rank.rank).collect::<Vec<_>>())
    }

    /// Accounts that the ranks gave of a failure, each once.
    pub fn failures(&self) -> Vec<&'a str> {
        each(self.0.iter().filter_map(|rank| rank.failure.as_deref()))
    }

    /// Ends of standard error, each once.
    pub fn stderr(&self) -> Vec<&'a str> {
        each(self.0.iter().filter_map(|rank| rank.stderr.as_deref()))
    }
}

fn each<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut each = Vec::new();
    for text in texts.filter(|text| !text.trim().is_empty()) {
        if !each.contains(&text) {
            each.push(text);
        }
    }
    each
}
