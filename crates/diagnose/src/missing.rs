//! Elements that no rank's optimizer was seen to hold: lost, or held where they were not recognised.

use super::observed::Observed;
use super::placement::{Placement, Span};
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::LayoutName;
use zprobe_report::words::{abridged, amount};

/// Most elements of a rank's piece of a parameter that is too short to be recognised by itself. A parameter
/// of which more remains unread is not judged.
const SHORT: usize = 16;

/// The elements that no rank's optimizer was seen to hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Elements that no optimizer holds.
    pub lost: Vec<Span>,
    /// Elements for which there is room among those that optimizers hold and that were not recognised.
    pub unread: Vec<Span>,
}

impl Missing {
    /// Tells what is lost from what may be held where it was not recognised.
    pub fn new(observed: &Observed<'_>, placement: &Placement, plan: &Plan) -> Self {
        let spans = placement.spans(plan).into_iter().filter(|span| span.owners.is_empty());
        let pieces = joined(spans);
        if observed.holds_unknown() {
            return Self { lost: Vec::new(), unread: pieces };
        }
        Self::sorted(pieces, rooms(observed))
    }

    /// Sorts pieces that nobody was seen to hold, for which there are rooms of so many elements. A room that is
    /// as long as a piece is the piece's; all others together have the shortest pieces.
    fn sorted(mut pieces: Vec<Span>, mut rooms: Vec<usize>) -> Self {
        let mut missing = Self::default();
        pieces.sort_by_key(|piece| piece.flat.len());
        pieces.retain(|piece| {
            let room = rooms.iter().position(|room| *room == piece.flat.len());
            missing.unread.extend(room.map(|room| {
                rooms.swap_remove(room);
                piece.clone()
            }));
            room.is_none()
        });
        let mut left: usize = rooms.iter().sum();
        for piece in pieces {
            let is_room = piece.flat.len() <= left;
            left -= if is_room { piece.flat.len() } else { 0 };
            if is_room { &mut missing.unread } else { &mut missing.lost }.push(piece);
        }
        missing.lost.sort_by_key(|piece| piece.flat.start);
        missing.unread.sort_by_key(|piece| piece.flat.start);
        missing
    }

    /// True if more of a parameter is unread than short pieces of it. Of a script that is only observed, that
    /// is no surprise: parameters whose elements are alike cannot be recognised there.
    pub fn is_much(&self, spec: &RunSpec) -> bool {
        let is_observed = spec.script().is_some_and(|script| script.observe.is_some());
        !is_observed && self.unread.iter().any(|it| it.flat.len() > SHORT * spec.world_size)
    }

    /// Sentence on what was not recognised; none if that is nothing.
    pub fn describe(&self, observed: &Observed<'_>) -> Option<String> {
        let unread = || self.unread.iter().filter(|piece| !observed.is_transformed(piece.param));
        let elements: usize = unread().map(|piece| piece.flat.len()).sum();
        let mut names: Vec<String> =
            unread().map(|piece| observed.param_name(piece.param)).collect();
        names.dedup();
        let why = if observed.holds_unknown() {
            "what optimizers hold does not tell where it belongs"
        } else {
            "optimizers hold as many elements or more that were not recognised, because they are too \
             few in a row or hold something else than gradients"
        };
        (elements > 0).then(|| {
            format!("{} of {}: not seen, {why}", amount(elements, "element"), abridged(&names))
        })
    }
}

/// Numbers of elements of ranks' optimizers that were not recognised, one for each run of them.
fn rooms(observed: &Observed<'_>) -> Vec<usize> {
    let partitions =
        observed.layouts.iter().filter(|((_, name), _)| *name == LayoutName::Partition);
    let segments = partitions.flat_map(|(_, segments)| segments.iter());
    segments.filter(|segment| segment.unread).map(|segment| segment.len).collect()
}

/// Parts of parameters, each as long as it can be.
fn joined(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.param == span.param && last.flat.end == span.flat.start => {
                last.flat.end = span.flat.end;
            }
            _ => joined.push(span),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_model::spec::SpecRequest;

    fn pieces(lengths: &[usize]) -> Vec<Span> {
        let piece = |(param, len): (usize, &usize)| {
            let flat = 1000 * param..1000 * param + len;
            Span { param, flat, owners: Vec::new() }
        };
        lengths.iter().enumerate().map(piece).collect()
    }

    /// Lengths of pieces that are lost, and of those that are unread.
    fn sorted(lengths: &[usize], rooms: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let missing = Missing::sorted(pieces(lengths), rooms.to_vec());
        let lengths = |pieces: &[Span]| pieces.iter().map(|it| it.flat.len()).collect();
        (lengths(&missing.lost), lengths(&missing.unread))
    }

    #[test]
    fn a_piece_for_which_there_is_room_is_not_lost() {
        assert_eq!(sorted(&[12], &[12]), (vec![], vec![12]));
        assert_eq!(sorted(&[12], &[20]), (vec![], vec![12]));
        assert_eq!(sorted(&[3, 8], &[5, 6]), (vec![], vec![3, 8]));
    }

    #[test]
    fn a_piece_for_which_there_is_no_room_is_lost() {
        assert_eq!(sorted(&[12], &[]), (vec![12], vec![]));
        assert_eq!(sorted(&[256, 12, 256], &[12]), (vec![256, 256], vec![12]));
        assert_eq!(sorted(&[5, 12], &[12]), (vec![5], vec![12]));
    }

    #[test]
    fn parts_of_a_parameter_that_lie_beside_each_other_are_one_piece() {
        let span = |param, flat| Span { param, flat, owners: Vec::new() };
        let spans = [span(0, 0..4), span(0, 4..9), span(1, 9..12)];
        assert_eq!(joined(spans.into_iter()), [span(0, 0..9), span(1, 9..12)]);
    }

    #[test]
    fn more_than_short_pieces_of_a_parameter_is_much() {
        let request = SpecRequest { world_size: Some(2), ..SpecRequest::default() };
        let spec = request.resolve().expect("a valid request");
        let missing = |len| Missing { lost: Vec::new(), unread: pieces(&[len]) };
        assert!(!missing(32).is_much(&spec));
        assert!(missing(33).is_much(&spec));
    }
}
