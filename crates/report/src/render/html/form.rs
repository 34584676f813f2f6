//! The forms by which weight matrices are compared. If there are many ranks, equal lines are merged, and a single rank
//! that is unlike all others has no name if it is a different rank in each buffer.

use std::collections::HashMap;

use super::RANKS_SHOWN;
use crate::Contribution;

/// The form of a matrix: its lines, and the source ranks of each line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatrixForm {
    pub lines: Vec<(Who, MatrixLine)>,
    pub as_planned: bool,
    /// The number of sets of weights that explain the elements, if the elements are too few to decide; otherwise 0.
    pub possible: usize,
}

/// The source ranks of a line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// The listed ranks.
    Ranks(Vec<usize>),
    /// The rank that holds the buffer.
    Itself,
    /// A single rank, which is a different rank in each buffer.
    One,
    /// All ranks except the single rank of the other line.
    Others,
}

/// The weights of one source rank's gradients and their expected values, as bits of `f64`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MatrixLine {
    pub weights: Vec<u64>,
    pub expected: Vec<u64>,
    /// The weights of gradients of earlier steps; empty if all are 0.
    pub leftover: Vec<u64>,
}

impl MatrixForm {
    /// The form of an entry. If there are few ranks, each has a line; if there are many, ranks that are alike share a
    /// line.
    pub fn new(entry: &Contribution) -> Self {
        let bits = |row: &[f64]| row.iter().map(|weight| (weight + 0.0).to_bits()).collect();
        let nothing_left = entry.leftover.iter().flatten().all(|weight| *weight == 0.0);
        let empty = Vec::new();
        let line = |rank: usize| MatrixLine {
            weights: bits(&entry.weights[rank]),
            expected: bits(entry.expected.get(rank).unwrap_or(&empty)),
            leftover: match entry.leftover.get(rank) {
                Some(leftover) if !nothing_left => bits(leftover),
                _ => Vec::new(),
            },
        };
        let world_size = entry.weights.len();
        let mut lines: Vec<(Who, MatrixLine)> = Vec::new();
        let mut known: HashMap<MatrixLine, usize> = HashMap::new();
        for rank in 0..world_size {
            let line = line(rank);
            match known.get(&line).filter(|_| world_size > RANKS_SHOWN) {
                Some(&at) => {
                    if let Who::Ranks(ranks) = &mut lines[at].0 {
                        ranks.push(rank);
                    }
                }
                None => {
                    known.insert(line.clone(), lines.len());
                    lines.push((Who::Ranks(vec![rank]), line));
                }
            }
        }
        Self { lines, as_planned: entry.as_planned, possible: entry.possible.len() }
    }

    /// The single rank whose line differs from that of all others, and this form without the name of that rank; `None`
    /// if there is no such rank. `owner` is the rank that holds the buffer.
    pub fn without_names(&self, owner: usize) -> Option<(usize, Self)> {
        let [(Who::Ranks(first), a), (Who::Ranks(second), b)] = &self.lines[..] else {
            return None;
        };
        let (odd, line, others) = match (&first[..], &second[..]) {
            (_, [odd]) if first.len() > 1 => (*odd, b, a),
            ([odd], _) if second.len() > 1 => (*odd, a, b),
            _ => return None,
        };
        let who = if odd == owner { Who::Itself } else { Who::One };
        let lines = vec![(who, line.clone()), (Who::Others, others.clone())];
        Some((odd, Self { lines, as_planned: self.as_planned, possible: self.possible }))
    }
}

impl Who {
    pub fn count(&self) -> usize {
        match self {
            Who::Ranks(ranks) => ranks.len(),
            Who::Itself | Who::One | Who::Others => 1,
        }
    }

    pub fn label(&self, world_size: usize) -> String {
        match self {
            Who::Ranks(ranks) => super::labels::ranks(ranks, world_size),
            Who::Itself => "the rank itself".to_owned(),
            Who::One => "one rank".to_owned(),
            Who::Others => "every other rank".to_owned(),
        }
    }
}
