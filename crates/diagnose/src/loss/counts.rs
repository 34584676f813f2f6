//! Wrong counts that divide a term of the loss, in place of the number of its own elements or microbatches.

use std::collections::BTreeSet;

use super::constants::is_data;
use super::scale::slack;
use super::slip::{StepPart, TermSlip};
use super::{MicrobatchTerm, StepTerm};
use crate::bounds;
use crate::case::Case;
use zprobe_model::spec::Dtype;
use zprobe_model::trace::{ConstantKind, LossConstant, LossTerm, LossWeighed, TermOf};

/// The largest ratio of all places to places with a weight for which the other places are taken for padding. An
/// object detector has a larger ratio, because most of its anchors are background.
const MOST_PADDED: f64 = 2.0;

/// Returns the mistakes that explain the sum of a loss with equal weights, which is `value` times that of a mean, by a
/// division by the number of other elements. The most likely mistake comes first.
pub fn other_elements(case: &Case<'_>, term: &StepTerm<'_>, value: f64) -> Vec<TermSlip> {
    if !is_of_like_tokens(term) {
        return Vec::new();
    }
    let all = term.elements() as f64;
    let is = |elements: f64| (elements * value / all - 1.0).abs() <= slack(case);
    let of = |part: &StepPart| {
        let rows = term.rows.iter().filter(|row| part.has(row));
        rows.map(|row| row.elements).sum::<usize>() as f64
    };
    let (ranks, steps) = (case.observed.replicas() as f64, term.taken as f64);
    let parts = parts(term);
    let counted = |times: &[f64]| -> Vec<TermSlip> {
        let is_it = |part: &&StepPart| times.iter().any(|times| is(of(part) * times));
        parts.iter().filter(is_it).copied().map(TermSlip::Counted).collect()
    };
    let microbatches = parts.iter().filter(|part| part.rank.is_none());
    let left_out = microbatches.filter(|part| is(all - of(part))).copied().map(TermSlip::LeftOut);
    let too_much = counts_too_much(case, term, value).then_some(TermSlip::CountedTooMuch);
    // The simplest explanations come first, because some of many products of counts agree by chance.
    let several = counted(&[ranks, steps, ranks * steps]);
    counted(&[1.0]).into_iter().chain(left_out).chain(several).chain(too_much).collect()
}

/// True if a count divides each microbatch of a term: the count of the microbatch, of its rank, or of the whole step.
pub(super) fn divides_by<'a>(
    rows: &[MicrobatchTerm<'a>],
    count: impl Fn(&MicrobatchTerm<'a>) -> usize,
) -> bool {
    let of_rank = |rank: usize| rows.iter().filter(|it| it.rank == rank).map(&count).sum();
    let of_all: usize = rows.iter().map(&count).sum();
    let sums: [&dyn Fn(&MicrobatchTerm<'a>) -> usize; 3] =
        [&count, &|row| of_rank(row.rank), &|_| of_all];
    let has = |row: &MicrobatchTerm<'_>, divisor: usize| {
        row.term.constants.iter().any(|it| it.divides && it.factor == divisor as f64)
    };
    sums.iter().any(|sum| rows.iter().all(|row| has(row, sum(row))))
}

/// True if a term lacks the mask of another term: it has an element in each place, but is divided by the number of
/// places in which the other term has one. The sum of its weights is `value` times that of a mean.
pub(super) fn lacks_mask(term: &StepTerm<'_>, value: f64) -> bool {
    let places = |it: &LossTerm| it.shape.iter().product::<usize>();
    let is_single = |it: &LossTerm| it.terms == 1;
    let fills = |row: &MicrobatchTerm<'_>| is_single(row.term) && row.elements == places(row.term);
    let first = term.rows.first().filter(|_| term.rows.iter().all(fills));
    let mut others = first.into_iter().flat_map(|row| &row.loss.terms);
    let is_it = |other: &LossTerm| {
        let of_row = |row: &MicrobatchTerm<'_>| -> Option<usize> {
            let mut terms = row.loss.terms.iter();
            let found = terms.find(|it| (it.of, &it.name) == (other.of, &other.name))?;
            let is_beside = is_single(found) && places(found) == places(row.term);
            is_beside.then(|| found.nonzero.unwrap_or(found.elements))
        };
        // A mask that leaves all places, such as that of the term itself, is none.
        term.rows.iter().all(|row| of_row(row).is_some())
            && term.rows.iter().any(|row| of_row(row) < Some(row.elements))
            && divides_by(&term.rows, |row| of_row(row).unwrap_or(0))
    };
    (1.0 + bounds::SAME_SUM..MOST_PADDED).contains(&value) && others.any(is_it)
}

/// Returns the parts of a step: its ranks, its microbatches, and the microbatches of each rank.
fn parts(term: &StepTerm<'_>) -> Vec<StepPart> {
    let ranks: BTreeSet<usize> = term.rows.iter().map(|row| row.rank).collect();
    let microbatches: BTreeSet<usize> = term.rows.iter().map(|row| row.loss.microbatch).collect();
    let of_rank = ranks.into_iter().map(|rank| (Some(rank), None));
    let of_microbatch = microbatches.into_iter().map(|microbatch| (None, Some(microbatch)));
    let of_both = term.rows.iter().map(|row| (Some(row.rank), Some(row.loss.microbatch)));
    let parts = of_rank.chain(of_microbatch).chain(of_both);
    parts.map(|(rank, microbatch)| StepPart { rank, microbatch }).collect()
}

/// True if a term that is averaged over its elements is divided by a number of elements again. Without that division,
/// the sum of its weights, which is `value` times that of a mean, is that of means.
pub(super) fn averages_again(case: &Case<'_>, term: &StepTerm<'_>, value: f64) -> bool {
    let (ranks, steps) = (case.observed.replicas() as f64, term.taken as f64);
    let tokens = |row: &MicrobatchTerm<'_>| -> usize {
        let terms = row.loss.terms.iter().filter(|it| it.of == TermOf::Tokens);
        terms.map(|it| it.elements).sum()
    };
    let whole = StepPart { rank: None, microbatch: None };
    let counts: BTreeSet<usize> = parts(term)
        .into_iter()
        .chain([whole])
        .flat_map(|part| {
            let rows = || term.rows.iter().filter(move |row| part.has(row));
            [rows().map(|row| row.elements).sum(), rows().map(tokens).sum()]
        })
        .collect();
    let is_count = |it: &&LossConstant| {
        let is_number = matches!(it.kind, ConstantKind::Int | ConstantKind::Tensor);
        let is_of_elements = counts.iter().any(|count| *count as f64 == it.factor);
        it.divides
            && it.by.is_none()
            && is_number
            && is_of_elements
            && it.factor > 2.0 * ranks * steps
    };
    let without = |row: &MicrobatchTerm<'_>| -> Option<f64> {
        let divisor = row.term.constants.iter().find(is_count)?;
        Some(row.total * divisor.factor)
    };
    let Some(means) = term.rows.iter().map(without).collect::<Option<Vec<f64>>>() else {
        return false;
    };
    let total: f64 = term.rows.iter().map(|row| row.total).sum();
    let value = value * means.iter().sum::<f64>() / total;
    [1.0, steps, ranks, steps * ranks].iter().any(|it| (value / it - 1.0).abs() <= slack(case))
}

/// True if a count over all ranks divides a term, and the script does not multiply the term by the number of ranks. The
/// term may be divided by the count of another term of the loss.
pub(super) fn counts_all_ranks(case: &Case<'_>, term: &StepTerm<'_>) -> bool {
    let ranks = case.observed.replicas() as f64;
    let makes_up = |row: &MicrobatchTerm<'_>| {
        let mut constants = row.term.constants.iter();
        constants.any(|it| it.value() == ranks)
    };
    let divides = |row: &MicrobatchTerm<'_>, count: usize| {
        let mut constants = row.term.constants.iter();
        constants.any(|it| it.divides && it.by.is_none() && it.factor == count as f64)
    };
    let mut all = term.rows.first().into_iter().flat_map(|row| &row.loss.terms);
    ranks > 1.0
        && !term.rows.iter().any(makes_up)
        && all.any(|other| {
            let counts = counts_of(term, other).into_iter();
            let mut sums = counts.map(|counts| counts.iter().sum());
            sums.any(|count| term.rows.iter().all(|row| divides(row, count)))
        })
}

/// Lists the counts by which a script may divide a term, one number for each microbatch: the elements of the term
/// `other`, these elements and the first token of each sample (which is a label, but never a target), and rows of these
/// elements, such as boxes of four coordinates. Equal counts in all microbatches are left out, because they may agree
/// with a size of the model by chance.
fn counts_of(term: &StepTerm<'_>, other: &LossTerm) -> Vec<Vec<usize>> {
    let same = |row: &MicrobatchTerm<'_>| {
        let mut terms = row.loss.terms.iter();
        terms.find(|it| (it.of, &it.name) == (other.of, &other.name)).map(|it| it.elements)
    };
    let Some(elements) = term.rows.iter().map(same).collect::<Option<Vec<usize>>>() else {
        return Vec::new();
    };
    let samples = term.rows.iter().map(|row| row.loss.samples.unwrap_or(0));
    let labels =
        elements.iter().zip(samples).map(|(elements, samples)| elements + samples).collect();
    let is_side = |side: &&usize| **side > 1 && elements.iter().all(|it| it % **side == 0);
    let sides = other.shape.iter().filter(is_side);
    let rows = sides.map(|side| elements.iter().map(|it| it / side).collect());
    let mut counts: Vec<Vec<usize>> = rows.chain([labels]).collect();
    counts.push(elements);
    counts.retain(|counts| counts.iter().any(|it| *it != counts[0]));
    counts
}

/// True if a term that only some microbatches or ranks have is divided by the number of all of them, and the script does
/// not make up for that by a multiplication by that number.
pub(super) fn in_some(case: &Case<'_>, term: &StepTerm<'_>, value: f64) -> bool {
    let share = share(case, term);
    let counts = [case.observed.spec.world_size as f64, 1.0 / share];
    let makes_up = |it: &LossConstant| !it.divides && counts.contains(&it.factor);
    let mut constants = term.rows.iter().flat_map(|row| &row.term.constants);
    share < 1.0
        && (value / share - 1.0).abs() <= bounds::SAME_SUM
        && !constants.any(makes_up)
        && !alternates(case, term)
}

/// The share of the microbatches of all ranks that have a term.
pub(super) fn share(case: &Case<'_>, term: &StepTerm<'_>) -> f64 {
    let ranks: BTreeSet<usize> = term.rows.iter().map(|row| row.rank).collect();
    let world = case.observed.spec.world_size;
    term.taken as f64 / term.of_turn as f64 * ranks.len() as f64 / world as f64
}

/// True if the microbatches without a term have a loss of other terms in its place, such as the loss of another task:
/// no term is in the loss of both kinds of microbatches, and the script divides both kinds by the same counts.
pub(super) fn alternates(case: &Case<'_>, term: &StepTerm<'_>) -> bool {
    let key = |it: &LossTerm| (it.of, it.name.clone());
    let with = |it: &LossWeighed| term.rows.iter().any(|row| std::ptr::eq(row.loss, it));
    let terms: Vec<_> = term.rows.iter().flat_map(|row| &row.loss.terms).map(key).collect();
    let losses = case.observed.script.losses.iter().filter(|((step, _), _)| *step == term.step);
    let mut without = losses.flat_map(|(_, of)| of).filter(|it| !with(it)).peekable();
    let counts = |it: &LossTerm| -> Vec<u64> {
        let is_count =
            |it: &&LossConstant| it.divides && it.kind == ConstantKind::Int && it.factor != 1.0;
        let counts = it.constants.iter().filter(is_count);
        counts.map(|it| it.factor.to_bits()).collect()
    };
    let own = term.rows.first().map(|row| counts(row.term));
    let is_other = |it: &LossTerm| !terms.contains(&key(it)) && Some(counts(it)) == own;
    without.peek().is_some()
        && without.all(|it| !it.terms.is_empty() && it.terms.iter().all(is_other))
}

/// Returns the number that divides a term, if it differs from the number of the term's microbatches; otherwise
/// `None`.
pub(super) fn other_count(term: &StepTerm<'_>, value: f64) -> Option<usize> {
    let constants = term.rows.first().into_iter().flat_map(|row| &row.term.constants);
    let mut counts = constants.filter(|it| it.divides && it.kind == ConstantKind::Int);
    let taken = term.taken as f64;
    let is_it = |it: &&LossConstant| {
        let share = taken / it.factor;
        it.factor != taken && share != 1.0 && (value / share - 1.0).abs() <= bounds::SAME_SUM
    };
    counts.find(is_it).map(|it| it.factor as usize)
}

/// True if a loss is divided by a count that depends on the data and is larger than the number of its target tokens.
fn counts_too_much(case: &Case<'_>, term: &StepTerm<'_>, value: f64) -> bool {
    let divisor = term.elements() as f64 / value;
    let error = divisor * bounds::COUNT;
    let is_count = (divisor - divisor.round()).abs() <= error;
    let is_exact = error < 0.1 && case.observed.spec.dtype == Dtype::Fp32;
    // A trainer's own count is not the script's fault: that of Hugging Face includes the first token of each sample.
    let by_tensor = |row: &MicrobatchTerm<'_>| {
        row.term.constants.iter().any(|it| is_data(it) && it.by.is_none())
    };
    let is_more = 0.5 < value && value < 1.0 - slack(case);
    is_more && is_count && is_exact && term.rows.iter().all(by_tensor)
}

/// True for a term of target tokens with equal weights.
fn is_of_like_tokens(term: &StepTerm<'_>) -> bool {
    let weights = || term.rows.iter().flat_map(|row| [row.term.least, row.term.most]);
    let (least, most) = (weights().fold(f64::MAX, f64::min), weights().fold(f64::MIN, f64::max));
    let is_weighted = term.rows.iter().any(|row| row.term.weighted);
    term.of() == TermOf::Tokens && !is_weighted && (most / least - 1.0).abs() <= bounds::SAME_TOKEN
}
