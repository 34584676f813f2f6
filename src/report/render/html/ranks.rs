//! Endings of ranks; of many, those that ended alike in one row.

use super::RANKS_SHOWN;
use super::labels;
use crate::report::{Rank, Report};

/// Ranks that ended alike.
pub(super) struct RankGroup<'a> {
    /// A member of the group.
    pub rank: &'a Rank,
    pub members: Vec<usize>,
    pub label: String,
    pub outcome: String,
    /// The end of standard error.
    pub stderr: Option<&'a str>,
}

/// Every rank of a report.
pub(super) fn of(report: &Report) -> Vec<RankGroup<'_>> {
    let world_size = report.ranks.len();
    let mut groups: Vec<(&Rank, Vec<usize>)> = Vec::new();
    for rank in &report.ranks {
        let alike = |known: &Rank| {
            let what = |rank: &Rank| {
                (rank.outcome, rank.finished, rank.last.clone(), rank.failure.clone())
            };
            what(known) == what(rank) && known.stderr == rank.stderr
        };
        match groups.iter_mut().find(|(known, _)| world_size > RANKS_SHOWN && alike(known)) {
            Some((_, members)) => members.push(rank.rank),
            None => groups.push((rank, vec![rank.rank])),
        }
    }
    let mut groups: Vec<RankGroup<'_>> = groups
        .into_iter()
        .map(|(rank, members)| RankGroup {
            label: labels::ranks(&members, world_size),
            outcome: rank.ending(),
            stderr: rank.stderr.as_deref(),
            members,
            rank,
        })
        .collect();
    // Among many ranks, a reader looks for those that did not end well.
    if world_size > RANKS_SHOWN {
        groups.sort_by_key(|group| group.rank.finished);
    }
    groups
}
