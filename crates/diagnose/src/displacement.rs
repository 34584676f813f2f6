//! Gradients with right values that lie at the wrong place of an optimizer's input.
//!
//! In a coded run the expected value of every element is known, and the signs of the code tell places apart. A piece
//! that is not as planned is searched for at all other places, in several steps at once, because steps have different
//! codes. The piece may come from the sum over the ranks, or from the rank's own gradients before the sum.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use zprobe_model::spec::{LARGEST_WHOLE, Model, Plan, Point};

use crate::bounds;
use crate::case::Case;
use crate::deviation::{Deviation, Pattern};
use crate::displaced::{Displaced, DisplacedContent, Displacement};
use crate::infinity;
use crate::norm::Clipping;
use crate::placement::Fragment;

/// The largest number of steps that are examined together. Codes repeat, so that more steps add no information.
const MOST_STEPS: usize = 4;

/// The smallest number of elements that are compared to look up a place.
const SHORTEST_HEAD: usize = 8;

/// Returns the displacements that explain deviations without a known pattern. The first call searches for them.
pub fn displacements<'case>(case: &'case Case<'_>) -> &'case [Displacement] {
    case.displacements.get_or_init(|| search(case))
}

fn search(case: &Case<'_>) -> Vec<Displacement> {
    // Weights that explain the whole gradient leave no element of another place.
    let unexplained = |it: &&Deviation| {
        it.pattern == Pattern::Unexplained && it.example.residual > it.example.tolerance
    };
    let mut left: Vec<&Deviation> = case.deviations.iter().filter(unexplained).collect();
    let mut found = Vec::new();
    while let Some(step) = left.iter().map(|it| it.step).min() {
        let here: Vec<_> = left.iter().filter(|it| it.step == step).map(|it| &it.params).collect();
        let (of_these, others): (Vec<_>, _) =
            left.iter().partition(|it| here.contains(&&it.params));
        left = others;
        // Several steps together reveal shorter pieces. If they have no displaced piece in common, the first step is
        // searched by itself.
        let mut steps: Vec<usize> = of_these.iter().map(|it| it.step).collect();
        steps.sort_unstable();
        steps.dedup();
        steps.truncate(MOST_STEPS);
        let mut pieces = find(case, &steps);
        if pieces.is_empty() && steps.len() > 1 {
            steps.truncate(1);
            pieces = find(case, &steps);
        }
        // A search is expensive. If it found nothing, the same parameters are not searched again. If it found pieces,
        // the other steps are only checked for the same pieces.
        if pieces.is_empty() {
            continue;
        }
        let mut again: BTreeMap<usize, bool> = steps.iter().map(|step| (*step, true)).collect();
        let mut is_again = |it: &&Deviation| {
            *again.entry(it.step).or_insert_with(|| is_again(case, it.step, &pieces))
        };
        let (same, different): (Vec<&Deviation>, Vec<_>) =
            of_these.into_iter().partition(&mut is_again);
        left.extend(different);
        let steps = same.into_iter().map(|it| it.step).collect();
        found.push(Displacement { pieces, steps });
    }
    found
}

/// Describes a piece: `rank 1: 128 elements from embed.weight[0] on hold the gradients from layers.0.mlp.bias[3]
/// on`.
pub fn describe(case: &Case<'_>, piece: &Displaced) -> String {
    let name = |element: usize| {
        let owner = case.plan.params().iter().position(|p| p.range().contains(&element));
        owner.map_or_else(
            || "nothing".to_owned(),
            |param| {
                let offset = element - case.plan.params()[param].offset;
                format!("{}[{offset}]", case.observed.model.param_name(param))
            },
        )
    };
    let (rank, place, content) = (piece.rank, name(piece.place), name(piece.content));
    let elements = format!("rank {rank}: {} elements from {place} on", piece.elements);
    match piece.held {
        DisplacedContent::Sum => format!("{elements} hold the gradients from {content} on"),
        DisplacedContent::Own => {
            format!("{elements} hold the gradients from {content} on, only of rank {rank}")
        }
        DisplacedContent::OwnDivided => format!(
            "{elements} hold the gradients from {content} on, only of rank {rank}, divided by the number of ranks"
        ),
        DisplacedContent::Added => {
            format!("{elements} also contain the gradients from {content} on")
        }
        DisplacedContent::ShareOf(of) => {
            format!("{elements} contain the gradients of rank {of} from {content} on")
        }
    }
}

/// Finds the pieces of the optimizers' input that are displaced in the same way in all of `steps`.
///
/// A piece that is too short to be certain by itself counts together with all others at the same distance.
fn find(case: &Case<'_>, steps: &[usize]) -> Vec<Displaced> {
    if case.observed.spec.model != Model::Coded || case.plan.numel() > LARGEST_WHOLE {
        return Vec::new();
    }
    let sums = PlaceIndex::new(StepValues::planned(case, steps, None));
    let mut pieces = in_place_of_others(case, steps, &sums);
    if pieces.is_empty() {
        pieces = added_to_others(case, steps, &sums);
    }
    if pieces.is_empty() {
        pieces = shares_of_ranks(case, steps, &sums);
    }
    pieces
}

/// Finds displaced pieces that replaced the gradients of the place where they lie.
fn in_place_of_others(case: &Case<'_>, steps: &[usize], sums: &PlaceIndex) -> Vec<Displaced> {
    // One index of a rank's own gradients takes as much memory as the index of the sums.
    let has_own = case.observed.replicas() > 1
        && case.plan.numel().saturating_mul(case.observed.spec.world_size) <= LARGEST_WHOLE;
    let mut candidates = Vec::new();
    for (rank, pieces) in consumed(case, steps) {
        let mut own = None;
        for ConsumedPart { flat, held } in pieces {
            if sums.elements.alike(flat.start, &held, 0) == flat.len() {
                continue;
            }
            let mut places = vec![(DisplacedContent::Sum, sums)];
            if has_own {
                let [own, divided] = own.get_or_insert_with(|| of_rank(case, steps, rank));
                places.extend([
                    (DisplacedContent::Own, &*own),
                    (DisplacedContent::OwnDivided, &*divided),
                ]);
            }
            let is_right = |at| {
                let right = sums.elements.alike(flat.start + at, &held, at);
                let shown = held.signs(at..at + right) as f64;
                if shown >= bounds::DETERMINED_BITS { right } else { 0 }
            };
            candidates.extend(in_piece(rank, &flat, &held, is_right, &places));
        }
    }
    displaced(&candidates)
}

/// Finds displaced pieces that were added to the gradients of the place where they lie, as happens if the views of two
/// gradients overlap.
fn added_to_others(case: &Case<'_>, steps: &[usize], sums: &PlaceIndex) -> Vec<Displaced> {
    let mut candidates = Vec::new();
    for (rank, pieces) in consumed(case, steps) {
        for ConsumedPart { flat, held } in pieces {
            let left = held.without(&sums.elements, flat.start);
            if left.signs(0..flat.len()) == 0 {
                continue;
            }
            let is_right =
                |at| (at..flat.len()).take_while(|it| left.signs(*it..it + 1) == 0).count();
            candidates.extend(in_piece(
                rank,
                &flat,
                &left,
                is_right,
                &[(DisplacedContent::Added, sums)],
            ));
        }
    }
    displaced(&candidates)
}

/// Finds pieces in which one rank's share of the sum belongs to other elements, as happens if the rank reduces its
/// parameters in another order than the other ranks.
fn shares_of_ranks(case: &Case<'_>, steps: &[usize], sums: &PlaceIndex) -> Vec<Displaced> {
    let ranks = case.observed.spec.world_size;
    if ranks == 1 || case.plan.numel().saturating_mul(ranks) > LARGEST_WHOLE {
        return Vec::new();
    }
    let consumed = consumed(case, steps);
    let (mut candidates, mut wrong) = (Vec::new(), BTreeSet::new());
    for of in 0..ranks {
        let share = PlaceIndex::new(StepValues::planned(case, steps, Some(of)));
        let others = sums.elements.without(&share.elements, 0);
        for (rank, parts) in &consumed {
            for ConsumedPart { flat, held } in parts {
                let left = held.without(&others, flat.start);
                let is_right = |at| share.elements.alike(flat.start + at, &left, at);
                let mut at = 0;
                while at < flat.len() {
                    let right = is_right(at);
                    if right == 0 {
                        wrong.insert((*rank, flat.start + at));
                    }
                    at += right.max(1);
                }
                let places = [(DisplacedContent::ShareOf(of), &share)];
                candidates.extend(in_piece(*rank, flat, &left, is_right, &places));
            }
        }
    }
    // A share has few different values, so pieces of it are found by chance in wrong values of any kind. An order that
    // differs explains most of the wrong values.
    let pieces = displaced(&candidates);
    let explained: usize = pieces.iter().map(|piece| piece.elements).sum();
    if explained * 2 >= wrong.len() { pieces } else { Vec::new() }
}

/// Returns those candidates that do not agree by chance.
fn displaced(candidates: &[Candidate]) -> Vec<Displaced> {
    let certain = certain(candidates);
    // A piece at its own place is not displaced, whatever gradients it holds.
    let displaced = candidates.iter().map(|it| &it.piece);
    displaced
        .filter(|it| it.distance() != 0 && certain.contains(&(it.held, it.distance())))
        .cloned()
        .collect()
}

/// A piece that may be displaced.
struct Candidate {
    piece: Displaced,
    /// The evidence for the piece, in bits: it agrees by chance with probability 2⁻ᵇⁱᵗˢ, because each element whose
    /// sign agrees counts one bit.
    bits: f64,
    /// The number of places whose elements have the same sizes as the piece, whatever their signs.
    alternatives: usize,
    /// The number of places at which the piece could have begun, in the part of the flat order that contains it.
    places: usize,
    /// True if the piece and others explain most of the part of the flat order in which it lies.
    covers: bool,
}

/// Returns the kinds and distances of pieces that do not agree by chance.
///
/// A truly displaced slice explains the parts of parameters inside it. A piece in the middle of an unexplained part
/// must be longer, because many places were tried for it. Several ranks with the same piece count once.
fn certain(candidates: &[Candidate]) -> HashSet<(DisplacedContent, i64)> {
    let mut groups: HashMap<(DisplacedContent, i64), Vec<&Candidate>> = HashMap::new();
    for candidate in candidates {
        let group = groups.entry((candidate.piece.held, candidate.piece.distance())).or_default();
        if group.iter().all(|known| known.piece.place != candidate.piece.place) {
            group.push(candidate);
        }
    }
    let tried = groups.len();
    let is_certain = |group: &[&Candidate]| {
        let alternatives = group.iter().map(|it| it.alternatives).min().unwrap_or(1).max(1);
        let covering: f64 = group.iter().filter(|it| it.covers).map(|it| it.bits).sum();
        let surplus = |it: &&Candidate| (it.bits - (it.places as f64).log2()).max(0.0);
        let anywhere: f64 = group.iter().map(surplus).sum();
        covering >= bounds::DETERMINED_BITS + (alternatives as f64).log2()
            || anywhere >= bounds::CHANCE_BITS + (alternatives.max(tried) as f64).log2()
    };
    groups.into_iter().filter(|(_, group)| is_certain(group)).map(|(key, _)| key).collect()
}

/// Finds pieces of one part of the flat order that belong at other places, from start to end. Pieces at the same
/// distance that are not certain by themselves do not overlap. `is_right` returns the number of right elements from an
/// index on.
fn in_piece(
    rank: usize,
    flat: &Range<usize>,
    held: &StepValues,
    is_right: impl Fn(usize) -> usize,
    places: &[(DisplacedContent, &PlaceIndex)],
) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    let mut ends: HashMap<(DisplacedContent, i64), usize> = HashMap::new();
    let (mut at, mut behind, mut explained) = (0, 0_usize, 0);
    while at < flat.len() {
        let place = flat.start + at;
        let right = is_right(at);
        if right > 0 {
            explained += right;
            (at, behind) = (at + right, 0);
            continue;
        }
        let alternatives = places.iter().map(|(_, places)| places.alternatives(held, at)).sum();
        let searched = (1.0 + behind as f64).log2();
        let here = places.iter().flat_map(|(kind, places)| {
            places.starts(held, at).iter().map(move |&content| {
                let elements = places.elements.alike(content, held, at);
                let bits = held.signs(at..at + elements) as f64 - searched;
                let piece = Displaced { rank, place, content, elements, held: *kind };
                Candidate { piece, bits, alternatives, places: flat.len(), covers: false }
            })
        });
        let mut here: Vec<Candidate> = here.filter(|it| it.bits > 0.0).collect();
        here.sort_by_key(|it| std::cmp::Reverse(it.piece.elements));
        let needed = bounds::DETERMINED_BITS + (alternatives.max(1) as f64).log2();
        if here.first().is_some_and(|it| it.bits >= needed) {
            let only = here.swap_remove(0);
            explained += only.piece.elements;
            (at, behind) = (at + only.piece.elements, 0);
            // Pieces found earlier that overlap this certain piece are dropped.
            found.retain(|it| it.piece.place + it.piece.elements <= only.piece.place);
            found.push(Candidate { covers: true, ..only });
            continue;
        }
        for new in here {
            let key = (new.piece.held, new.piece.distance());
            if ends.get(&key).is_none_or(|end| *end <= new.piece.place) {
                ends.insert(key, new.piece.place + new.piece.elements);
                found.push(new);
            }
        }
        (at, behind) = (at + 1, behind + 1);
    }
    for candidate in &mut found {
        let own = if candidate.covers { 0 } else { candidate.piece.elements };
        candidate.covers = (explained + own) * 4 >= flat.len() * 3;
    }
    found
}

/// True if the same pieces are displaced in the same way in the optimizers' input of `step`. This check is cheap,
/// because it searches no places.
fn is_again(case: &Case<'_>, step: usize, displaced: &[Displaced]) -> bool {
    let sums = StepValues::planned(case, &[step], None);
    let consumed = consumed(case, &[step]);
    let is_there = |piece: &Displaced| {
        consumed.get(&piece.rank).into_iter().flatten().any(|ConsumedPart { flat, held }| {
            let Some(at) = piece.place.checked_sub(flat.start) else { return false };
            at < flat.len()
                && match piece.held {
                    DisplacedContent::Sum => sums.alike(piece.content, held, at) >= piece.elements,
                    DisplacedContent::Added => {
                        let left = held.without(&sums, flat.start);
                        sums.alike(piece.content, &left, at) >= piece.elements
                    }
                    DisplacedContent::ShareOf(rank) => {
                        let share = StepValues::planned(case, &[step], Some(rank));
                        let left = held.without(&sums.without(&share, 0), flat.start);
                        share.alike(piece.content, &left, at) >= piece.elements
                    }
                    DisplacedContent::Own | DisplacedContent::OwnDivided => {
                        let own = StepValues::planned(case, &[step], Some(piece.rank));
                        let own = if piece.held == DisplacedContent::Own {
                            own.times_ranks(case)
                        } else {
                            own
                        };
                        own.alike(piece.content, held, at) >= piece.elements
                    }
                }
        })
    };
    displaced.iter().all(is_there)
}

/// The values of the same elements in several steps.
#[derive(Clone)]
struct StepValues {
    /// The values of all elements, one list for each step.
    values: Vec<Vec<f64>>,
}

impl StepValues {
    /// Returns the planned values of the whole flat order in these steps: the optimizer's input, or only the part
    /// that rank `own` adds to it.
    fn planned(case: &Case<'_>, steps: &[usize], own: Option<usize>) -> Self {
        let (spec, plan) = (case.observed.spec, &case.plan);
        let code = Plan::code(spec);
        let boundary = spec.gradient_accumulation_steps - 1;
        let of = |step: usize, param: usize| {
            let usage = plan.usage(param);
            let mut weights = plan.expected(usage, Point::OptimizerInput, step, boundary, 0);
            if let Some(rank) = own {
                let columns = spec.column(step, rank, 0)..=spec.column(step, rank, boundary);
                for (column, weight) in weights.iter_mut().enumerate() {
                    if !columns.contains(&column) {
                        *weight = 0.0;
                    }
                }
            }
            code.encode(&weights, plan.params()[param].range())
        };
        let whole = |step: &usize| {
            (0..plan.params().len()).flat_map(|param| of(*step, param)).collect::<Vec<f64>>()
        };
        Self { values: steps.iter().map(whole).collect() }
    }

    /// Returns the values of a rank's gradients before the division by the number of ranks.
    fn times_ranks(mut self, case: &Case<'_>) -> Self {
        let ranks = case.observed.replicas() as f64;
        self.values.iter_mut().flatten().for_each(|value| *value *= ranks);
        self
    }

    /// Subtracts the values of `planned`, from element `start` on.
    fn without(&self, planned: &Self, start: usize) -> Self {
        let of_step = |(held, planned): (&Vec<f64>, &Vec<f64>)| {
            held.iter().zip(&planned[start..]).map(|(held, planned)| held - planned).collect()
        };
        Self { values: self.values.iter().zip(&planned.values).map(of_step).collect() }
    }

    fn len(&self) -> usize {
        self.values[0].len()
    }

    /// Hashes the elements' values, rounded to integers, and their absolute values. `None` if no element shows a
    /// sign, as such elements look the same everywhere, and for a range beyond the end.
    fn hashes(&self, elements: Range<usize>) -> Option<[u64; 2]> {
        if elements.end > self.len() || self.signs(elements.clone()) == 0 {
            return None;
        }
        let (mut values, mut sizes) = (DefaultHasher::new(), DefaultHasher::new());
        for value in self.values.iter().flat_map(|values| &values[elements.clone()]) {
            let value = value.round() as i64;
            value.hash(&mut values);
            value.unsigned_abs().hash(&mut sizes);
        }
        Some([values.finish(), sizes.finish()])
    }

    /// The number of elements that show a sign: those that are not 0 in some step.
    fn signs(&self, elements: Range<usize>) -> usize {
        let shows = |element: &usize| {
            self.values.iter().any(|values| values[*element].abs() >= bounds::SAME_ELEMENT)
        };
        elements.filter(shows).count()
    }

    /// The number of consecutive elements from `start` on that equal the elements of `held` from `at` on.
    fn alike(&self, start: usize, held: &Self, at: usize) -> usize {
        let of_step = |(expected, held): (&Vec<f64>, &Vec<f64>)| {
            let pairs = expected[start..].iter().zip(&held[at..]);
            pairs.take_while(|(e, value)| (**value - **e).abs() < bounds::SAME_ELEMENT).count()
        };
        self.values.iter().zip(&held.values).map(of_step).min().unwrap_or(0)
    }
}

/// A part of the flat order, with the values that an optimizer consumed for it.
struct ConsumedPart {
    flat: Range<usize>,
    held: StepValues,
}

/// Returns the gradients that each rank's optimizer consumed in all of `steps`, by parts of the flat order. A rank is
/// left out if one of its steps was recorded in other parts or was clipped.
fn consumed(case: &Case<'_>, steps: &[usize]) -> BTreeMap<usize, Vec<ConsumedPart>> {
    let mut steps = steps.iter().map(|step| consumed_in(case, *step));
    let mut by_rank = steps.next().unwrap_or_default();
    for mut here in steps {
        by_rank.retain(|rank, parts| {
            let Some(more) = here.remove(rank) else { return false };
            let is_same = parts.len() == more.len()
                && parts.iter().zip(&more).all(|(part, other)| part.flat == other.flat);
            for (part, other) in parts.iter_mut().zip(more) {
                part.held.values.extend(other.held.values);
            }
            is_same
        });
    }
    by_rank
}

/// Returns the gradients that each rank's optimizer consumed in one step, if they were not clipped.
fn consumed_in(case: &Case<'_>, step: usize) -> BTreeMap<usize, Vec<ConsumedPart>> {
    let mut by_rank: BTreeMap<usize, Vec<ConsumedPart>> = BTreeMap::new();
    for buffer in case.observed.buffers.at(Point::OptimizerInput, step) {
        let clip = Clipping::of(&case.observed, &case.norms, step, buffer.rank);
        let Some(values) = buffer.payload.values().ok().filter(|_| clip == Clipping::No) else {
            continue;
        };
        let part = |it: Fragment| {
            let values = vec![values[it.start..][..it.flat.len()].to_vec()];
            ConsumedPart { flat: it.flat, held: StepValues { values } }
        };
        let parts = infinity::parts(&case.observed, &case.plan, buffer);
        by_rank.entry(buffer.rank).or_default().extend(parts.into_iter().map(part));
    }
    by_rank
}

/// Returns a rank's own gradients, before a reduction and divided by the number of ranks.
fn of_rank(case: &Case<'_>, steps: &[usize], rank: usize) -> [PlaceIndex; 2] {
    let divided = StepValues::planned(case, steps, Some(rank));
    [PlaceIndex::new(divided.clone().times_ranks(case)), PlaceIndex::new(divided)]
}

/// An index of the expected values of all elements, which finds the positions with given values.
struct PlaceIndex {
    elements: StepValues,
    /// The number of elements that are hashed for each place.
    head: usize,
    /// Positions in the flat order, by the hash of the `head` values that start at them.
    by_head: HashMap<u64, Vec<usize>>,
    /// The number of positions, by the hash of the `head` absolute values that start at them.
    by_size: HashMap<u64, usize>,
}

impl PlaceIndex {
    fn new(elements: StepValues) -> Self {
        let head = SHORTEST_HEAD.max(elements.len().max(1).ilog2() as usize);
        let mut by_head: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut by_size: HashMap<u64, usize> = HashMap::new();
        for start in 0..elements.len() {
            if let Some([values, sizes]) = elements.hashes(start..start + head) {
                *by_size.entry(sizes).or_default() += 1;
                by_head.entry(values).or_default().push(start);
            }
        }
        Self { elements, head, by_head, by_size }
    }

    /// Returns the positions whose values equal those of `held` from `at` on.
    fn starts(&self, held: &StepValues, at: usize) -> &[usize] {
        let hashes = held.hashes(at..at + self.head);
        hashes.and_then(|[values, _]| self.by_head.get(&values)).map_or(&[], Vec::as_slice)
    }

    /// The number of positions that would match `held` from `at` on if signs did not count. The absolute values of
    /// codes repeat, but no sequence of their signs does.
    fn alternatives(&self, held: &StepValues, at: usize) -> usize {
        let hashes = held.hashes(at..at + self.head);
        hashes.and_then(|[_, sizes]| self.by_size.get(&sizes)).copied().unwrap_or(0)
    }
}
