//! Elements of the model that were not seen in any rank's optimizer: they are lost, or an optimizer holds them
//! unrecognised.

use crate::observed::Observed;
use crate::placement::{ModelPlacement, OwnedSpan};
use zprobe_model::spec::{Plan, RunSpec};
use zprobe_model::trace::LayoutName;
use zprobe_report::words::{abridged, amount};

/// The number of elements up to which a rank's piece of a parameter is too short to be recognised by itself. A
/// parameter with more unrecognised elements is not judged.
const SHORT: usize = 16;

/// The elements that were not seen in any rank's optimizer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnseenElements {
    /// The elements that no optimizer holds.
    pub lost: Vec<OwnedSpan>,
    /// The elements that may be held: optimizers hold enough unrecognised elements to include them.
    pub unread: Vec<OwnedSpan>,
}

impl UnseenElements {
    /// Separates lost elements from elements that may be held without being recognised.
    pub fn new(observed: &Observed<'_>, placement: &ModelPlacement, plan: &Plan) -> Self {
        let spans = placement.spans(plan).into_iter().filter(|span| span.owners.is_empty());
        let pieces = joined(spans);
        if observed.holds_unknown() {
            return Self { lost: Vec::new(), unread: pieces };
        }
        Self::sorted(pieces, rooms(observed))
    }

    /// Sorts pieces that no optimizer was seen to hold into lost and unrecognised ones. `rooms` are the lengths of the
    /// runs of elements in the optimizers that were not recognised. A run of exactly the length of a piece is taken
    /// for that piece. The shortest of the other pieces share the other runs.
    fn sorted(mut pieces: Vec<OwnedSpan>, mut rooms: Vec<usize>) -> Self {
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

    /// True if a parameter has more unrecognised elements than short pieces explain. For a script that is only
    /// observed this is normal, because parameters with equal elements cannot be recognised there.
    pub fn is_much(&self, spec: &RunSpec) -> bool {
        let is_observed = spec.script().is_some_and(|script| script.observe.is_some());
        !is_observed && self.unread.iter().any(|it| it.flat.len() > SHORT * spec.world_size)
    }

    /// Describes the unrecognised elements in one sentence; `None` if there are none.
    pub fn describe(&self, observed: &Observed<'_>) -> Option<String> {
        let unread = || self.unread.iter().filter(|piece| !observed.is_transformed(piece.param));
        let elements: usize = unread().map(|piece| piece.flat.len()).sum();
        let mut names: Vec<String> =
            unread().map(|piece| observed.model.param_name(piece.param)).collect();
        names.dedup();
        let why = if observed.holds_unknown() {
            "zprobe cannot tell where the optimizers hold these elements"
        } else {
            "the optimizers hold at least this many elements in runs that are too short to recognise, or that hold \
             no gradients"
        };
        (elements > 0).then(|| {
            format!("{} of {}: not seen, {why}", amount(elements, "element"), abridged(&names))
        })
    }
}

/// Returns the lengths of the unrecognised runs of elements in the ranks' optimizers.
fn rooms(observed: &Observed<'_>) -> Vec<usize> {
    let partitions =
        observed.model.layouts.iter().filter(|((_, name), _)| *name == LayoutName::Partition);
    let segments = partitions.flat_map(|(_, segments)| segments.iter());
    segments.filter(|segment| segment.unread).map(|segment| segment.len).collect()
}

/// Joins adjacent spans of the same parameter.
fn joined(spans: impl Iterator<Item = OwnedSpan>) -> Vec<OwnedSpan> {
    let mut joined: Vec<OwnedSpan> = Vec::new();
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

    fn pieces(lengths: &[usize]) -> Vec<OwnedSpan> {
        let piece = |(param, len): (usize, &usize)| {
            let flat = 1000 * param..1000 * param + len;
            OwnedSpan { param, flat, owners: Vec::new() }
        };
        lengths.iter().enumerate().map(piece).collect()
    }

    /// Returns the lengths of the lost pieces and of the unread pieces.
    fn sorted(lengths: &[usize], rooms: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let missing = UnseenElements::sorted(pieces(lengths), rooms.to_vec());
        let lengths = |pieces: &[OwnedSpan]| pieces.iter().map(|it| it.flat.len()).collect();
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
        let span = |param, flat| OwnedSpan { param, flat, owners: Vec::new() };
        let spans = [span(0, 0..4), span(0, 4..9), span(1, 9..12)];
        assert_eq!(joined(spans.into_iter()), [span(0, 0..9), span(1, 9..12)]);
    }

    #[test]
    fn more_than_short_pieces_of_a_parameter_is_much() {
        let request = SpecRequest { world_size: Some(2), ..SpecRequest::default() };
        let spec = request.resolve().expect("a valid request");
        let missing = |len| UnseenElements { lost: Vec::new(), unread: pieces(&[len]) };
        assert!(!missing(32).is_much(&spec));
        assert!(missing(33).is_much(&spec));
    }
}
