//! The sum of the weights of a term's elements, and the slip that explains it where it is not that of a mean.
//!
//! A mean has the sum 1. Constants of the script's own (the coefficient of an auxiliary loss, the squared
//! temperature of a distillation) are nodes between the loss and its elements: only what they leave
//! unexplained is judged.

use std::collections::BTreeSet;

use super::super::Case;
use super::super::bounds;
use super::{Row, Term};
use crate::spec::{Dtype, Scale};
use crate::trace::{ConstantKind, LossConstant, LossTerm, TermOf};

/// Least power of two that is a loss scale, and no constant of a script's own.
pub const LEAST_LOSS_SCALE: f64 = 128.0;

/// Largest difference of a sum of weights from that of a slip which the constants of the loss have, as a logarithm.
const NEARLY: f64 = 0.35;

/// Most constants of a script's own that are looked at.
const MOST_CONSTANTS: usize = 6;

/// A sum of weights that is judged.
#[derive(Clone, Debug, PartialEq)]
pub enum Sum {
    /// That of a mean.
    Mean,
    /// The loss is a sum that nothing divides.
    Plain,
    /// So many times that of a mean, by a slip.
    Off(f64, Slip),
    /// That of a mean over a full window, where this one is shorter: so many of so many microbatches.
    Partial(usize, usize),
    /// A number that nothing explains, the script's own constants taken out that bring it nearest to 1.
    Unexplained(f64),
    /// Not read.
    Unknown,
}

/// A part of a step: the microbatches of a rank, one microbatch of every rank, or one of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    rank: Option<usize>,
    microbatch: Option<usize>,
}

/// A slip that multiplies all weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slip {
    /// Divided by the accumulation steps twice.
    DividedBySteps,
    /// Never divided by the accumulation steps.
    NotDividedBySteps,
    /// Divided by the number of ranks twice.
    DividedByRanks,
    /// Summed over the ranks, and not divided by their number.
    NotDividedByRanks,
    /// Divided by the accumulation steps and by the ranks once more.
    DividedByBoth,
    /// Divided neither by the accumulation steps nor by the ranks.
    NotDividedByEither,
    /// Multiplied with the number of ranks, and divided by the accumulation steps once more.
    RanksForSteps,
    /// Never divided by the accumulation steps, and by the ranks once more.
    StepsForRanks,
    /// Multiplied with a loss scale that was never taken out.
    Scaled,
    /// Divided by the loss scale twice.
    UnscaledTwice,
    /// Divided by the accumulation steps or by the ranks twice, which are as many.
    DividedByOneOfBoth,
    /// Divided by a count over a part of the step.
    Counted(Part),
    /// Divided by a count of more than the elements.
    CountedTooMuch,
    /// In some microbatches of the step alone, or on some ranks, and divided by the number of all.
    InSome,
    /// Divided by another number than that of its microbatches.
    OtherCount(usize),
    /// Divided by a count that leaves out a part of the step.
    LeftOut(Part),
}

impl Slip {
    /// True if the slip is what the user demands.
    fn is_meant(self, demanded: Scale) -> bool {
        match demanded {
            Scale::Any => true,
            Scale::Sum => matches!(
                self,
                Self::NotDividedBySteps | Self::NotDividedByRanks | Self::NotDividedByEither
            ),
            Scale::Mean => false,
        }
    }

    /// The slip in words: what happened to the loss.
    pub fn describe(self, steps: usize, ranks: usize) -> String {
        match self {
            Self::DividedBySteps => format!("divided by the accumulation steps ({steps}) twice"),
            Self::NotDividedBySteps => format!("never divided by the accumulation steps ({steps})"),
            Self::DividedByRanks => format!("divided by the number of ranks ({ranks}) twice"),
            Self::NotDividedByRanks => {
                format!("summed over the ranks and not divided by their number ({ranks})")
            }
            Self::DividedByBoth => {
                format!(
                    "divided by the accumulation steps ({steps}) and by the ranks ({ranks}) once too often"
                )
            }
            Self::NotDividedByEither => {
                format!(
                    "divided neither by the accumulation steps ({steps}) nor by the ranks ({ranks})"
                )
            }
            Self::RanksForSteps => format!(
                "not divided by the ranks ({ranks}), and by the accumulation steps ({steps}) twice"
            ),
            Self::StepsForRanks => format!(
                "never divided by the accumulation steps ({steps}), and by the ranks ({ranks}) twice"
            ),
            Self::Scaled => "multiplied by a loss scale that was never taken out".to_owned(),
            Self::UnscaledTwice => "divided by the loss scale twice".to_owned(),
            Self::DividedByOneOfBoth => format!(
                "divided by the accumulation steps or by the number of ranks ({ranks} each) once too often"
            ),
            Self::InSome => {
                "some microbatches or ranks alone have it, and it is divided by the number of all"
                    .to_owned()
            }
            Self::OtherCount(count) => {
                format!("divided by {count}, and {steps} microbatches have it")
            }
            Self::LeftOut(part) => format!(
                "divided by the elements of the step without those of {}, which goes backward beside them",
                part.describe()
            ),
            Self::CountedTooMuch => {
                "divided by a count of more than its target tokens, such as padding or the first \
                                     token of each sample"
                    .to_owned()
            }
            Self::Counted(part) => {
                format!(
                    "divided by the elements of {} alone, and not by those of the step",
                    part.describe()
                )
            }
        }
    }
}

/// Judges the sum of the weights of a term.
pub fn judge(case: &Case<'_>, term: &Term<'_>) -> Sum {
    let demanded = case.observed.spec.script().map_or(Scale::Mean, |script| script.scale);
    let Some(total) = term.in_update().map(f64::abs).filter(|it| *it > 0.0) else {
        return Sum::Unknown;
    };
    if term.of() == TermOf::Hidden {
        return Sum::Unknown;
    }
    let free = own_constants(case, term);
    let right = right(term);
    let is = |value: f64, wanted: f64| (value / wanted - 1.0).abs() <= slack(case);
    let is_right = |value: f64| right.iter().any(|it| is(value, *it));
    let products = products(&free);
    let of_all_lines = term.of_all_lines.zip(term.factor).map(|(sum, factor)| (sum * factor).abs());
    let share = term.taken as f64 / term.full as f64;
    if term.taken < term.full && is(total, share) && count(term, 1.0 / term.full as f64, true) > 0 {
        return Sum::Partial(term.taken, term.full);
    }
    let own: f64 = certain(case, term, &free).iter().product();
    let value = total / own / means(term);
    let slips = slips(case, term);
    if in_some(case, term, value) {
        return if demanded == Scale::Any { Sum::Mean } else { Sum::Off(value, Slip::InSome) };
    }
    // What a term has not, and others of the same loss have, is no constant of the script's own.
    let mut lacking =
        slips.iter().filter(|(slip, wanted)| is(value, *wanted) && lacks(case, term, *slip));
    if let Some((slip, _)) = lacking.next().filter(|(slip, _)| !slip.is_meant(demanded)) {
        return Sum::Off(value, *slip);
    }
    let is_fixed = !term.rows.iter().any(|row| row.term.constants.iter().any(is_data));
    let is_share = (total / share).ln().abs() <= NEARLY.min(total.ln().abs());
    if term.taken < term.full
        && is_fixed
        && is_share
        && count(term, 1.0 / term.full as f64, true) > 0
    {
        return Sum::Partial(term.taken, term.full);
    }
    let is_mean = |total: f64| products.iter().any(|own| is_right(total / own));
    if is_mean(total) || of_all_lines.is_some_and(is_mean) {
        return Sum::Mean;
    }
    if is_plain_sum(term, &free) || is_weighted_sum(term) {
        return Sum::Plain;
    }
    if term.taken < term.full && is(value, term.taken as f64 / term.full as f64) {
        return Sum::Partial(term.taken, term.full);
    }
    let mut others = slips.iter().filter(|(_, wanted)| *wanted != 1.0);
    // A loss that is divided by the count to be expected, and not by that of its own elements, is a mean by and large.
    let is_near = |(slip, wanted): &&(Slip, f64)| {
        let distance = (total / wanted).ln().abs();
        distance <= NEARLY.min(total.ln().abs()) && is_in_constants(case, term, *slip)
    };
    let exact = others.clone().find(|(_, wanted)| is(value, *wanted)).map(|(slip, _)| *slip);
    let mut nearly = || others.find(is_near).map(|(slip, _)| *slip);
    let counted = || part(case, term, total);
    let too_much = || counts_too_much(case, term, total).then_some(Slip::CountedTooMuch);
    if let Some(slip) = exact {
        return if slip.is_meant(demanded) { Sum::Mean } else { Sum::Off(value, slip) };
    }
    let mut by_count = || if is_fixed { nearly() } else { counted().or_else(too_much) };
    let other = || other_count(term, value).map(Slip::OtherCount);
    if let Some(slip) = other() {
        return if slip.is_meant(demanded) { Sum::Mean } else { Sum::Off(value, slip) };
    }
    if let Some(slip) = by_count() {
        return if slip.is_meant(demanded) { Sum::Mean } else { Sum::Off(total, slip) };
    }
    let distance = |value: &f64| value.ln().abs();
    let sums = products.iter().map(|own| total / own);
    let nearest = sums.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(value);
    if demanded == Scale::Any { Sum::Mean } else { Sum::Unexplained(nearest) }
}

/// The slips that are looked for, with the sum to which each leads.
fn slips(case: &Case<'_>, term: &Term<'_>) -> Vec<(Slip, f64)> {
    let ranks = case.observed.replicas() as f64;
    let steps = term.taken as f64;
    // An average over the ranks is seen in what the optimizers consume.
    let average = term.factor.is_some_and(|factor| {
        let copies = case.observed.spec.world_size as f64 / ranks;
        (factor * copies * ranks - 1.0).abs() <= slack(case)
    });
    let scale = loss_scale(term);
    let over = |wanted: f64| has_factor(term, wanted);
    let is_own = |wanted: f64| count(term, wanted, false) > 0;
    let mut all = vec![
        (Slip::NotDividedBySteps, steps),
        (Slip::DividedBySteps, 1.0 / steps),
        (Slip::NotDividedByRanks, ranks),
        (Slip::DividedByRanks, 1.0 / ranks),
        (Slip::NotDividedByEither, steps * ranks),
        (Slip::DividedByBoth, 1.0 / (steps * ranks)),
        (Slip::RanksForSteps, ranks / steps),
        (Slip::StepsForRanks, steps / ranks),
    ];
    // Where steps and ranks are as many, the constants tell which of the two it is.
    if steps == ranks {
        let is_other = |slip: Slip| match slip {
            Slip::DividedBySteps => !is_own(1.0 / steps),
            Slip::NotDividedBySteps => !average || over(1.0 / steps),
            _ => false,
        };
        all.retain(|(slip, _)| !is_other(*slip));
        let is_known = is_own(1.0 / steps) || !over(1.0 / steps);
        let divided = all.iter_mut().find(|(slip, _)| *slip == Slip::DividedByRanks);
        if let Some((slip, _)) = divided.filter(|_| !is_known) {
            *slip = Slip::DividedByOneOfBoth;
        }
    }
    if let Some(scale) = scale {
        all.extend([(Slip::Scaled, scale), (Slip::UnscaledTwice, 1.0 / scale)]);
    }
    all
}

/// The part of the step by whose number of elements the loss was divided, if all elements weigh the same: the sum is
/// `value` times that of a mean.
fn part(case: &Case<'_>, term: &Term<'_>, value: f64) -> Option<Slip> {
    if !is_of_like_tokens(term) {
        return None;
    }
    let (ranks, steps) = (case.observed.replicas() as f64, term.taken as f64);
    let divisor = term.elements() as f64 / value;
    let ranks_seen: BTreeSet<usize> = term.rows.iter().map(|row| row.rank).collect();
    let microbatches: BTreeSet<usize> = term.rows.iter().map(|row| row.loss.microbatch).collect();
    let of_rank = ranks_seen.iter().map(|rank| (Some(*rank), None));
    let of_microbatch = microbatches.iter().map(|microbatch| (None, Some(*microbatch)));
    let of_both = term.rows.iter().map(|row| (Some(row.rank), Some(row.loss.microbatch)));
    let parts = of_rank.chain(of_microbatch).chain(of_both);
    let mut parts = parts.map(|(rank, microbatch)| Part { rank, microbatch });
    let is = |elements: f64| (elements / divisor - 1.0).abs() <= slack(case);
    parts.find_map(|part| {
        let rows = term.rows.iter().filter(|row| part.has(row));
        let elements = rows.map(|row| row.term.elements).sum::<usize>() as f64;
        let times = [1.0, ranks, steps, ranks * steps];
        let is_left_out = part.rank.is_none() && is(term.elements() as f64 - elements);
        if is_left_out {
            Some(Slip::LeftOut(part))
        } else {
            times.iter().any(|times| is(elements * times)).then_some(Slip::Counted(part))
        }
    })
}

/// True if a term that some microbatches alone have is divided by the number of all of them.
fn in_some(case: &Case<'_>, term: &Term<'_>, value: f64) -> bool {
    let ranks: BTreeSet<usize> = term.rows.iter().map(|row| row.rank).collect();
    let world = case.observed.spec.world_size;
    let share = term.taken as f64 / term.of_turn as f64 * ranks.len() as f64 / world as f64;
    share < 1.0 && (value / share - 1.0).abs() <= bounds::SAME_SUM
}

/// The number that a term is divided by in place of that of its microbatches; none if it is not.
fn other_count(term: &Term<'_>, value: f64) -> Option<usize> {
    let constants = term.rows.first().into_iter().flat_map(|row| &row.term.constants);
    let mut counts = constants.filter(|it| it.divides && it.kind == ConstantKind::Int);
    let taken = term.taken as f64;
    let is_it = |it: &&LossConstant| {
        let share = taken / it.factor;
        it.factor != taken && share != 1.0 && (value / share - 1.0).abs() <= bounds::SAME_SUM
    };
    counts.find(is_it).map(|it| it.factor as usize)
}

/// True if a constant divides by a count that the data have.
fn is_data(constant: &LossConstant) -> bool {
    constant.divides && constant.kind == ConstantKind::Tensor
}

/// True if a loss is divided by a count, of which each step has another one, and which is larger than the number of its
/// target tokens.
fn counts_too_much(case: &Case<'_>, term: &Term<'_>, value: f64) -> bool {
    let divisor = term.elements() as f64 / value;
    let error = divisor * bounds::COUNT;
    let is_count = (divisor - divisor.round()).abs() <= error;
    let is_exact = error < 0.1 && case.observed.spec.dtype == Dtype::Fp32;
    // What a trainer counts is the trainer's: Hugging Face's has the first token of each sample in it.
    let by_tensor =
        |row: &Row<'_>| row.term.constants.iter().any(|it| is_data(it) && it.by.is_none());
    let is_more = 0.5 < value && value < 1.0 - slack(case);
    is_of_like_tokens(term) && is_more && is_count && is_exact && term.rows.iter().all(by_tensor)
}

/// True for target tokens that all weigh the same.
fn is_of_like_tokens(term: &Term<'_>) -> bool {
    let weights = || term.rows.iter().flat_map(|row| [row.term.least, row.term.most]);
    let (least, most) = (weights().fold(f64::MAX, f64::min), weights().fold(f64::MIN, f64::max));
    let is_weighted = term.rows.iter().any(|row| row.term.weighted);
    term.of() == TermOf::Tokens && !is_weighted && (most / least - 1.0).abs() <= bounds::SAME_TOKEN
}

impl Part {
    /// True if a microbatch belongs to the part.
    fn has(self, row: &Row<'_>) -> bool {
        self.rank.is_none_or(|rank| rank == row.rank)
            && self.microbatch.is_none_or(|microbatch| microbatch == row.loss.microbatch)
    }

    /// The part in words.
    fn describe(self) -> String {
        match (self.rank, self.microbatch) {
            (Some(rank), None) => format!("rank {rank}"),
            (None, Some(microbatch)) => format!("microbatch {microbatch}"),
            (Some(rank), Some(microbatch)) => format!("microbatch {microbatch} of rank {rank}"),
            (None, None) => "the step".to_owned(),
        }
    }
}

/// True if the constants of the loss have the slip: a division that is there twice, or a multiplication of the script's
/// own that is not the engine's to undo.
fn is_in_constants(case: &Case<'_>, term: &Term<'_>, slip: Slip) -> bool {
    let ranks = case.observed.replicas() as f64;
    let steps = term.taken as f64;
    match slip {
        Slip::DividedBySteps => count(term, 1.0 / steps, true) > 1,
        Slip::NotDividedByRanks => count(term, ranks, false) > 0,
        Slip::DividedByRanks => count(term, 1.0 / ranks, false) > 0,
        _ => false,
    }
}

/// True if other terms of the same loss have a product or a quotient with a number of the script, and this one has not:
/// that in which the slip consists.
fn lacks(case: &Case<'_>, term: &Term<'_>, slip: Slip) -> bool {
    let (ranks, steps) = (case.observed.replicas() as f64, term.taken as f64);
    let (number, divides) = match slip {
        Slip::DividedByRanks => (ranks, false),
        Slip::DividedBySteps => (steps, false),
        Slip::NotDividedByRanks => (ranks, true),
        Slip::NotDividedBySteps => (steps, true),
        _ => return false,
    };
    let is_it = |it: &LossConstant| {
        it.by.is_none() && !it.written && it.divides == divides && it.factor == number
    };
    let has = |term: &LossTerm| term.constants.iter().any(is_it);
    number > 1.0 && term.rows.iter().all(|row| !has(row.term) && row.loss.terms.iter().any(has))
}

/// Number of constants of a term with this value: of all of them, or of the script's own.
fn count(term: &Term<'_>, value: f64, is_any: bool) -> usize {
    let constants = term.rows.first().into_iter().flat_map(|row| &row.term.constants);
    let of = constants.filter(|it| is_any || it.by.is_none());
    of.filter(|it| (it.value() / value - 1.0).abs() < 1e-9).count()
}

/// True if the loss was multiplied with this number by one of its constants, or by a hook.
fn has_factor(term: &Term<'_>, wanted: f64) -> bool {
    let is = |it: f64| (it / wanted - 1.0).abs() < 1e-9;
    let of_row =
        |row: &Row<'_>| is(row.loss.seed) || row.term.constants.iter().any(|it| is(it.value()));
    term.rows.iter().any(of_row)
}

/// The loss scale that the whole loss was multiplied with; none if there is none.
pub fn loss_scale(term: &Term<'_>) -> Option<f64> {
    let constants = &term.rows.first()?.term.constants;
    let scales = constants.iter().filter(|it| it.is_loss_scale());
    scales.map(|it| it.value()).reduce(|product, it| product * it)
}

/// Largest difference of two sums of weights that are the same, as a share of one.
fn slack(case: &Case<'_>) -> f64 {
    match case.observed.spec.dtype {
        Dtype::Fp32 => bounds::SAME_SUM,
        Dtype::Bf16 | Dtype::Fp16 => bounds::SAME_SCALE,
    }
}

/// Number of means that a term adds up: those of several terms of its kind, unless these are averaged themselves.
fn means(term: &Term<'_>) -> f64 {
    let Some(Row { term, loss, .. }) = term.rows.first() else { return 1.0 };
    let constants: f64 = term.constants.iter().map(LossConstant::value).product();
    let sum = term.total / (constants * loss.seed);
    let is_sum = (sum.abs() / term.terms as f64 - 1.0).abs() <= bounds::SAME_SCALE;
    if is_sum { term.terms as f64 } else { 1.0 }
}

/// Sums that are right: that of one mean, of each of several terms of a kind, or of a mean over samples of sums over
/// what each of them has.
fn right(term: &Term<'_>) -> Vec<f64> {
    let mut right = vec![1.0];
    let Some(first) = term.rows.first().map(|row| row.term) else { return right };
    if term.rows.iter().all(|row| row.term.terms == first.terms) {
        right.push(first.terms as f64);
    }
    if term.of() == TermOf::Elements && first.kind.contains("sum") {
        let shape = first.shape.iter().skip(1).rev();
        let sizes = shape.scan(1.0, |product, side| {
            *product *= *side as f64;
            Some(*product)
        });
        right.extend(sizes);
    }
    right
}

/// Constants of the script's own: those that all microbatches have, and that normalise nothing.
fn own_constants(case: &Case<'_>, term: &Term<'_>) -> Vec<f64> {
    let Some(first) = term.rows.first() else { return Vec::new() };
    let in_all = |constant: &&LossConstant| {
        let has = |row: &Row<'_>| {
            let mut constants = row.term.constants.iter();
            constants.any(|it| it.value() == constant.value() && it.kind == constant.kind)
        };
        term.rows.iter().all(has)
    };
    let constants = first.term.constants.iter().filter(in_all);
    let counts = [case.observed.replicas() as f64, term.taken as f64];
    let without_count = |it: &LossConstant| match it.times {
        Some(times) if counts.contains(&times) => it.value() / times,
        _ => it.value(),
    };
    let free = constants.filter(|it| is_own(case, term, it)).map(without_count);
    free.filter(|it| *it != 1.0).take(MOST_CONSTANTS).collect()
}

/// Those of the script's own constants that are no number of microbatches or of ranks in a line that names one.
fn certain(case: &Case<'_>, term: &Term<'_>, own: &[f64]) -> Vec<f64> {
    let counts = [case.observed.replicas() as f64, term.taken as f64];
    let constants = || term.rows.iter().flat_map(|row| &row.term.constants);
    let is_named = |value: f64| {
        constants().any(|it| it.counted && it.kind == ConstantKind::Int && it.value() == value)
    };
    let is_counted =
        |value: f64| is_named(value) && counts.iter().any(|it| *it == value || *it == 1.0 / value);
    own.iter().copied().filter(|value| !is_counted(*value)).collect()
}

/// True if a constant may be the script's own, and not there to make a mean of a sum.
fn is_own(case: &Case<'_>, term: &Term<'_>, constant: &LossConstant) -> bool {
    let ranks = case.observed.replicas() as f64;
    let steps = term.taken as f64;
    let number = constant.factor.abs();
    if constant.is_loss_scale() || constant.kind == ConstantKind::Tensor || number == 0.0 {
        return false;
    }
    let terms = term.rows.first().map_or(1, |row| row.loss.terms.len()) as f64;
    let is_count = |it: f64| number == it && it > 1.0;
    let is_share = |it: f64| (number * it - 1.0).abs() < 1e-6 && it > 2.0;
    match constant.kind {
        // A package divides by a number because it has to.
        _ if constant.by.is_some() => false,
        ConstantKind::Int if constant.divides => {
            let is_of_terms = number == terms && !constant.whole;
            is_of_terms || constant.written && !(is_count(steps) && number > 2.0)
        }
        ConstantKind::Int => {
            constant.written || !(is_count(ranks) || is_count(steps) && constant.counted)
        }
        _ if constant.divides => !is_count(steps) || constant.written,
        _ => constant.written || !constant.whole || !(is_share(steps) || is_share(ranks)),
    }
}

/// All products of some of these numbers, that of all of them first.
fn products(numbers: &[f64]) -> Vec<f64> {
    let all = (1_usize << numbers.len()) - 1;
    let of = |chosen: usize| {
        let some = numbers.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
        some.map(|(_, number)| number.abs()).product()
    };
    (0..=all).rev().map(of).collect()
}

/// True if a loss is a sum that nothing but constants of the script's own scales.
fn is_plain_sum(term: &Term<'_>, own: &[f64]) -> bool {
    let of_row = |row: &Row<'_>| {
        let others =
            row.term.constants.iter().filter(|it| it.value() != 1.0 && !it.is_loss_scale());
        row.term.kind.starts_with("sum")
            && !row.term.kind.contains("mean")
            && others.count() <= own.len()
    };
    term.of() != TermOf::Parameters && term.rows.iter().all(of_row)
}

/// True if a loss is a sum whose elements the script weighs itself: it may be a mean or not.
fn is_weighted_sum(term: &Term<'_>) -> bool {
    term.rows.iter().all(|row| row.term.weighted && row.term.kind.contains("sum"))
}

impl Sum {
    /// True for a sum that is that of a mean, or nearly: a loss that is divided by the count to be expected.
    pub fn is_right(&self) -> bool {
        match self {
            Self::Mean => true,
            Self::Unexplained(value) => value.ln().abs() <= NEARLY,
            _ => false,
        }
    }
}

impl LossConstant {
    /// The number that the loss was multiplied with.
    pub fn value(&self) -> f64 {
        if self.divides { 1.0 / self.factor } else { self.factor }
    }

    /// True if this is a loss scale: a power of two, for the whole loss.
    pub fn is_loss_scale(&self) -> bool {
        let exponent = self.factor.log2();
        let is_power = self.factor > 0.0 && exponent.fract() == 0.0;
        is_power && self.whole && !self.divides && self.factor >= LEAST_LOSS_SCALE
    }
}
