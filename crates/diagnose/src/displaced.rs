//! The pieces of an optimizer's input that belong to other elements.

use crate::scope::Extent;

/// The kind of gradients that a displaced piece holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisplacedContent {
    /// The sum over the ranks, as planned for the place where the piece belongs.
    Sum,
    /// The rank's own gradients, as they are before a reduction.
    Own,
    /// The rank's own gradients, divided by the number of ranks.
    OwnDivided,
    /// The sum that is planned for the place where the piece lies, plus the sum of the displaced elements.
    Added,
    /// The sum that is planned for the place where the piece lies, except that this rank's share is that of the
    /// displaced elements.
    ShareOf(usize),
}

/// A piece of an optimizer's input that belongs somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The rank whose optimizer consumed the piece.
    pub rank: usize,
    /// The element of the flat order at which the piece lies.
    pub place: usize,
    /// The element of the flat order at which the piece belongs.
    pub content: usize,
    /// The number of elements in the piece.
    pub elements: usize,
    /// The gradients that the piece holds.
    pub held: DisplacedContent,
}

impl Displaced {
    /// The distance, in elements, from the place where the piece lies to the place where it belongs; positive if it
    /// belongs further on.
    pub fn distance(&self) -> i64 {
        self.content as i64 - self.place as i64
    }
}

/// Pieces that are displaced in the same way in several steps.
#[derive(Clone, Debug)]
pub struct Displacement {
    /// The pieces; at least one.
    pub pieces: Vec<Displaced>,
    /// The steps in which exactly these pieces are displaced.
    pub steps: Extent<usize>,
}

impl Displacement {
    /// True if the shares of single ranks are displaced, and not whole sums.
    pub fn is_of_shares(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece.held, DisplacedContent::ShareOf(_)))
    }
}
