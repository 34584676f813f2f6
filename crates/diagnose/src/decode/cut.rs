//! Places inside a piece at which the weights change, and elements that differ from their surroundings.
//!
//! A missing or repeated gradient changes at least every other element. So a few wrong elements among many right ones
//! do not belong to other weights; they are misplaced or foreign elements.

use std::rc::Rc;

use zprobe_model::spec::code::Code;

use super::weights::ColumnWeights;
use crate::bounds::DETERMINED_BITS;
use crate::placement::Fragment;

/// The shortest run of elements that counts as holding some weights because each element fits: by chance only every
/// other element fits.
const SHORTEST_RUN: usize = DETERMINED_BITS as usize;

/// The largest number of right elements between two wrong ones of the same run, because a wrong value may be right by
/// chance.
const MOST_BETWEEN: usize = 3;

/// A piece, cut where its weights change.
pub struct PieceCut {
    /// The runs of elements, each with the weights that it holds.
    pub runs: Vec<(Rc<ColumnWeights>, Fragment)>,
    /// The runs of elements that hold none of the known weights.
    pub odd: Vec<Fragment>,
}

/// Cuts a piece into runs that hold one of the `known` weights, each given with its bound on the error of an element.
/// `None` if more than a quarter of the elements hold none of them.
pub fn cut(
    code: &Code,
    piece: &Fragment,
    values: &[f64],
    known: &[(Rc<ColumnWeights>, f64)],
) -> Option<PieceCut> {
    let len = piece.flat.len();
    let right = right(code, piece, values, known);
    let all_alike = sparse(&right, len).map(|label| vec![Some(label); len]);
    let labels = [Some(in_runs(&right, len)), all_alike].into_iter().flatten();
    let labels = labels.filter_map(|labels| with_neighbours(labels, &right));
    let odd = |labels: &Vec<Option<usize>>| labels.iter().filter(|label| label.is_none()).count();
    let labels = labels.min_by_key(odd)?;
    (4 * odd(&labels) <= len).then(|| PieceCut::new(piece, &labels, known))
}

/// Cuts a piece into the elements that hold the `planned` weights and the others; `None` if more than half of the
/// elements are not as planned.
pub fn differing(
    code: &Code,
    piece: &Fragment,
    values: &[f64],
    planned: &(Rc<ColumnWeights>, f64),
) -> Option<PieceCut> {
    let planned = std::slice::from_ref(planned);
    let right = right(code, piece, values, planned);
    let labels = with_neighbours(vec![Some(0); piece.flat.len()], &right)?;
    let odd = labels.iter().filter(|label| label.is_none()).count();
    (2 * odd <= piece.flat.len()).then(|| PieceCut::new(piece, &labels, planned))
}

/// Returns, for each of the `known` weights, which elements of a piece hold them.
fn right(
    code: &Code,
    piece: &Fragment,
    values: &[f64],
    known: &[(Rc<ColumnWeights>, f64)],
) -> Vec<Vec<bool>> {
    let held = &values[piece.start..];
    let of = |(weights, slack): &(Rc<ColumnWeights>, f64)| {
        let sum = weights.sum(code);
        let elements = piece.flat.clone().zip(held);
        elements.map(|(element, value)| (value - sum.value(element)).abs() <= *slack).collect()
    };
    known.iter().map(of).collect()
}

impl PieceCut {
    /// Creates a cut from labels: each label is an index into `known`, or `None` for an odd element.
    fn new(piece: &Fragment, labels: &[Option<usize>], known: &[(Rc<ColumnWeights>, f64)]) -> Self {
        let mut cut = Self { runs: Vec::new(), odd: Vec::new() };
        let mut first = 0;
        for run in labels.chunk_by(|a, b| a == b) {
            let flat = piece.flat.start + first..piece.flat.start + first + run.len();
            let part = Fragment { param: piece.param, flat, start: piece.start + first };
            first += run.len();
            match run[0] {
                Some(label) => cut.runs.push((Rc::clone(&known[label].0), part)),
                None => cut.odd.push(part),
            }
        }
        cut
    }
}

/// Returns the index of the weights that all elements but a few hold. The exceptions must be so few that chance, with
/// probability 1/2 for each element, cannot explain the agreement.
fn sparse(right: &[Vec<bool>], len: usize) -> Option<usize> {
    let wrong = |label: &usize| right[*label].iter().filter(|right| !**right).count();
    let best = (0..right.len()).min_by_key(wrong)?;
    let (mut ways, mut all) = (1.0, 0.0);
    for chosen in 0..=wrong(&best) {
        all += ways;
        ways *= (len - chosen) as f64 / (chosen + 1) as f64;
    }
    (all.log2() + DETERMINED_BITS <= len as f64).then_some(best)
}

/// Labels each element with the index of the weights that it holds, in runs that are as long as possible.
fn in_runs(right: &[Vec<bool>], len: usize) -> Vec<Option<usize>> {
    let mut labels = Vec::with_capacity(len);
    while labels.len() < len {
        let from = labels.len();
        let run = |label: &usize| right[*label][from..].iter().take_while(|right| **right).count();
        // Of several equally long runs, the first is taken.
        let longest = (0..right.len()).rev().max_by_key(run).map(|label| (label, run(&label)));
        match longest.filter(|(_, run)| *run >= SHORTEST_RUN) {
            Some((label, run)) => labels.extend(vec![Some(label); run]),
            None => labels.push(None),
        }
    }
    labels
}

/// Adds unlabelled elements to the run next to them, if they hold its weights and do not lie between wrong elements.
/// `None` if there is no run.
fn with_neighbours(labels: Vec<Option<usize>>, right: &[Vec<bool>]) -> Option<Vec<Option<usize>>> {
    let first = *labels.iter().flatten().next()?;
    let mut beside = first;
    let mut given: Vec<Option<usize>> = labels
        .iter()
        .enumerate()
        .map(|(element, label)| {
            beside = label.unwrap_or(beside);
            right[beside][element].then_some(beside)
        })
        .collect();
    let wrong: Vec<usize> = (0..given.len()).filter(|&element| given[element].is_none()).collect();
    for pair in wrong.windows(2) {
        if pair[1] - pair[0] <= MOST_BETWEEN + 1 {
            given[pair[0]..pair[1]].fill(None);
        }
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONES: [f64; 8] = [1.0; 8];

    fn piece(code: &Code, len: usize) -> (Fragment, Vec<f64>, Rc<ColumnWeights>) {
        let weights = ColumnWeights::new(ONES.to_vec());
        let values = code.encode(&ONES, 100..100 + len);
        (Fragment { param: 0, flat: 100..100 + len, start: 0 }, values, weights)
    }

    #[test]
    fn a_few_wrong_elements_are_told_from_other_weights() {
        let code = Code::new(8, 3);
        let (piece, mut values, planned) = piece(&code, 40);
        values[39] += 3.0;
        let found = cut(&code, &piece, &values, &[(Rc::clone(&planned), 0.0)]).unwrap();
        assert_eq!(found.odd, [Fragment { param: 0, flat: 139..140, start: 39 }]);
        assert_eq!(found.runs.len(), 1);
        values[2] += 1.0;
        values[5] += 1.0;
        let found = cut(&code, &piece, &values, &[(planned, 0.0)]).unwrap();
        let odd: Vec<_> = found.odd.iter().map(|it| it.flat.clone()).collect();
        assert_eq!(odd, [102..106, 139..140]);
    }

    #[test]
    fn a_piece_is_cut_where_its_weights_change() {
        let code = Code::new(8, 3);
        let (piece, mut values, planned) = piece(&code, 60);
        let mut without = ONES.to_vec();
        without[5] = 0.0;
        let other = ColumnWeights::new(without.clone());
        values[37..].copy_from_slice(&code.encode(&without, 137..160));
        let known = [(planned, 0.0), (other, 0.0)];
        let found = cut(&code, &piece, &values, &known).unwrap();
        let runs: Vec<_> = found.runs.iter().map(|(_, it)| it.flat.clone()).collect();
        assert_eq!(runs, [100..137, 137..160]);
        assert!(found.odd.is_empty());
        // No weights are known of the second half.
        assert!(cut(&code, &piece, &values, &known[..1]).is_none());
    }
}
