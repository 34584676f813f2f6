//! The outcomes of the ranks; if there are many ranks, those that ended alike share an entry.

use super::{Block, Section, Topic};
use crate::words::{by_rank, counted};
use crate::{Rank, Report, Stack};
use zprobe_model::trace::Frame;

/// The largest number of ranks that are listed one by one.
pub const MOST_APART: usize = 16;

/// The largest number of stack traces that are shown for ranks that ended alike; `report.json` has all stack traces.
const MOST_STACKS: usize = 4;

/// Ranks that ended alike; there is at least one rank.
pub struct RankGroup<'a>(pub Vec<&'a Rank>);

/// The section about the last action of every rank.
pub(super) fn section(report: &Report) -> Section<'_> {
    let blocks = vec![Block::Ranks(groups(report))];
    let is_detail = report.ranks.iter().all(|rank| rank.finished);
    Section { is_detail, ..Section::new(Topic::Ranks, "What every rank did last", blocks) }
}

/// All ranks of a report, grouped by how they ended. If there are many ranks, the groups that did not finish come
/// first.
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
    /// The first of the ranks, which represents the group.
    pub fn first(&self) -> &'a Rank {
        self.0[0]
    }

    /// The ranks of the group in words: `rank 0`.
    pub fn label(&self) -> String {
        counted("rank", &self.0.iter().map(|rank| rank.rank).collect::<Vec<_>>())
    }

    /// The failures of the ranks, without duplicates.
    pub fn failures(&self) -> Vec<&'a str> {
        each(self.0.iter().filter_map(|rank| rank.failure.as_deref()))
    }

    /// The logs with the ranks' standard error, without duplicates.
    pub fn stderr(&self) -> Vec<&'a str> {
        each(self.0.iter().filter_map(|rank| rank.stderr.as_deref()))
    }
}

impl RankGroup<'_> {
    /// The Python stack traces of the ranks, without duplicates: a title, and a line for each frame, with a mark on the
    /// user's own code.
    pub fn stacks(&self) -> Vec<(String, String)> {
        let mut each: Vec<&Stack> = Vec::new();
        for stack in self.0.iter().flat_map(|rank| &rank.stacks) {
            if !each.contains(&stack) && each.len() < MOST_STACKS {
                each.push(stack);
            }
        }
        each.into_iter().map(|stack| (title(stack), lines(stack))).collect()
    }
}

fn title(stack: &Stack) -> String {
    let thread = match stack.thread {
        0 => String::new(),
        thread => format!(" of thread {thread}"),
    };
    format!("Python stack trace{thread}, innermost call first (> marks your own code)")
}

fn lines(stack: &Stack) -> String {
    let line = |frame: &Frame| {
        let mark = if frame.is_own { "> " } else { "" };
        format!("{mark}{}", frame.place())
    };
    stack.frames.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The innermost line of the user's own code and the innermost frame of each rank with a stack trace, in words. Ranks
/// that are at the same place share a line if there are many.
pub(super) fn places(report: &Report) -> Vec<String> {
    let place = |rank: &Rank| {
        let frames = &rank.stacks.iter().find(|stack| stack.thread == 0)?.frames;
        let innermost = frames.first()?.place();
        let own = frames.iter().find(|frame| frame.is_own).map(Frame::place);
        Some(match own {
            Some(own) if own != innermost => format!("{own}, in {innermost}"),
            _ => innermost,
        })
    };
    let places = report.ranks.iter().filter_map(|rank| Some((rank.rank, place(rank)?)));
    by_rank(places)
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
