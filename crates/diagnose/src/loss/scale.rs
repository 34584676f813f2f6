//! The sum of the weights of a term's elements, and the mistake that explains a sum other than that of a mean.
//!
//! A mean has the sum 1. The script's own constants (such as the coefficient of an auxiliary loss, or the squared
//! temperature of a distillation) are nodes between the loss and its elements. Only the part of the sum that they do
//! not explain is judged.

use super::constants::{
    certain, count, has_factor, is_data, is_in_constants, lacks, loss_scale, own_constants,
    products,
};
use super::counts::{
    alternates, averages_again, counts_all_ranks, in_some, lacks_mask, other_count, other_elements,
    share,
};
use super::slip::TermSlip;
use super::{MicrobatchTerm, StepTerm, contract};
use crate::bounds;
use crate::case::Case;
use zprobe_model::spec::{Dtype, Scale};
use zprobe_model::trace::{LossConstant, LossTerm, TermOf};

/// The largest difference, as a logarithm, between a sum of weights and the sum to which a mistake leads that the
/// constants of the loss show.
const NEARLY: f64 = 0.35;

/// The judgement of a sum of weights.
#[derive(Clone, Debug, PartialEq)]
pub enum SumVerdict {
    /// The sum is that of a mean.
    Mean,
    /// The loss is a sum without a division.
    Plain,
    /// The sum is this multiple of a mean's, because of this mistake.
    Off(f64, TermSlip),
    /// The window is short, but was divided like a full one: (its microbatches, microbatches of a full window).
    Partial(usize, usize),
    /// The sum is this multiple of a mean's: it covers padding, but is divided by the number of places in another
    /// term's mask.
    Unmasked(f64),
    /// The sum is this multiple of a mean's for an unknown reason, after division by those of the script's own
    /// constants that bring it nearest to 1.
    Unexplained(f64),
    /// The sum was not read.
    Unknown,
}

/// Judges the sums of the weights of all terms of a loss.
///
/// A mistake about the whole loss is more likely than one about some of its terms. A number of microbatches or ranks
/// among the script's own constants can hide the mistake in the other terms.
pub fn judge_all(case: &Case<'_>, terms: &[StepTerm<'_>]) -> Vec<SumVerdict> {
    let sums: Vec<SumVerdict> = terms.iter().map(|term| judge(case, term)).collect();
    let is_of_all = |slip: TermSlip| {
        terms.iter().zip(&sums).all(|(term, sum)| match sum {
            SumVerdict::Unknown
            | SumVerdict::Plain
            | SumVerdict::Unmasked(_)
            | SumVerdict::Unexplained(_) => true,
            SumVerdict::Off(_, other) if *other == slip => !lacks(case, term, slip),
            _ => may_have(case, term, slip),
        })
    };
    let whole = sums.iter().find_map(|sum| match sum {
        SumVerdict::Off(value, slip) if is_of_all(*slip) => Some((*value, *slip)),
        _ => None,
    });
    let of_all = |sum| match (whole, sum) {
        (Some((value, slip)), SumVerdict::Mean | SumVerdict::Off(..)) => {
            SumVerdict::Off(value, slip)
        }
        (_, sum) => sum,
    };
    sums.into_iter().map(of_all).collect()
}

/// True if a mistake may lead to the sum of a term, after division by some of the script's own constants.
fn may_have(case: &Case<'_>, term: &StepTerm<'_>, slip: TermSlip) -> bool {
    let slips = slips(case, term);
    let wanted = slips.iter().find(|(it, _)| *it == slip).map(|(_, wanted)| *wanted);
    let total = term.in_update().map(f64::abs);
    let products = products(&own_constants(case, term));
    wanted.zip(total).is_some_and(|(wanted, total)| {
        products.iter().any(|own| is(case, total / own / means(case, term), wanted))
    })
}

/// Judges the sum of the weights of one term, without regard to the other terms.
pub fn judge(case: &Case<'_>, term: &StepTerm<'_>) -> SumVerdict {
    let demanded = case.observed.spec.script().map_or(Scale::Mean, |script| script.scale);
    let Some(total) = term.in_update().map(f64::abs).filter(|it| *it > 0.0) else {
        return SumVerdict::Unknown;
    };
    if term.of() == TermOf::Hidden {
        return SumVerdict::Unknown;
    }
    let free = own_constants(case, term);
    let own: f64 = certain(case, term, &free).iter().map(|it| it.abs()).product();
    let value = total / own / means(case, term);
    let slips = slips(case, term);
    let off = |(value, slip): (f64, TermSlip)| {
        if slip.is_meant(demanded) { SumVerdict::Mean } else { SumVerdict::Off(value, slip) }
    };
    let products = products(&free);
    if is_short(case, term, total) {
        return SumVerdict::Partial(term.taken, term.full);
    }
    if let Some(found) = beside_others(case, term, value, &slips) {
        return off(found);
    }
    if averages(case, term) && counts_all_ranks(case, term) {
        return off((1.0 / case.observed.replicas() as f64, TermSlip::DividedByRanks));
    }
    if is_mean(case, term, total, &products) {
        return SumVerdict::Mean;
    }
    if lacks_mask(term, value) {
        return SumVerdict::Unmasked(value);
    }
    if let Some(found) = by_sample(case, term, value, &slips) {
        return off(found);
    }
    if is_plain_sum(term, &free) || is_weighted_sum(term) {
        return SumVerdict::Plain;
    }
    if term.taken < term.full && is(case, value, term.taken as f64 / term.full as f64) {
        return SumVerdict::Partial(term.taken, term.full);
    }
    if let Some(found) = by_itself(case, term, total, value, &slips) {
        return off(found);
    }
    let distance = |value: &f64| value.ln().abs();
    let sums = products.iter().map(|own| total / own);
    let nearest = sums.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(value);
    if demanded == Scale::Any { SumVerdict::Mean } else { SumVerdict::Unexplained(nearest) }
}

/// True if two sums of weights are equal within the tolerance.
fn is(case: &Case<'_>, value: f64, wanted: f64) -> bool {
    (value / wanted - 1.0).abs() <= slack(case)
}

/// True if a sum is nearer to `wanted` than to 1, and close to `wanted`: a loss that is divided by an expected count,
/// and not by the number of its own elements, has such a sum.
fn is_nearly(value: f64, wanted: f64) -> bool {
    (value / wanted).ln().abs() <= NEARLY.min(value.ln().abs())
}

/// True if a loss is a mean, divided by the number of its own elements. The sum of its weights is then exact, unlike
/// that of a loss that is divided by an expected count.
fn is_averaged(term: &StepTerm<'_>) -> bool {
    term.rows.iter().any(|row| row.term.kind.contains("mean"))
}

/// True if a count that depends on the data divides the loss.
fn is_counted(term: &StepTerm<'_>) -> bool {
    term.rows.iter().any(|row| row.term.constants.iter().any(is_data))
}

/// True if a term is divided by the number of microbatches of a full window, although its own window is shorter.
fn is_short(case: &Case<'_>, term: &StepTerm<'_>, total: f64) -> bool {
    let full = term.full as f64;
    let share = term.taken as f64 / full;
    let is_fixed = !is_counted(term) && !is_averaged(term);
    let is_share = is(case, total, share) || is_fixed && is_nearly(total, share);
    term.taken < term.full && is_share && count(term, 1.0 / full, true) > 0
}

/// True if a sum is that of a mean, after division by some of the script's own constants.
fn is_mean(case: &Case<'_>, term: &StepTerm<'_>, total: f64, products: &[f64]) -> bool {
    let mut right = right(case, term);
    if alternates(case, term) {
        right.push(share(case, term));
    }
    let is_right = |value: f64| right.iter().any(|it| is(case, value, *it));
    let is_mean = |total: f64| products.iter().any(|own| is_right(total / own));
    let of_all_lines = term.of_all_lines.zip(term.factor).map(|(sum, factor)| (sum * factor).abs());
    is_mean(total) || of_all_lines.is_some_and(is_mean)
}

/// Returns the mistake about a term that shows in comparison with other terms, ranks and microbatches: they have an
/// operation that this term lacks. With the mistake, returns the multiple of the right sum to which it leads: the sum of
/// a mean, or that of a sum over the elements.
fn beside_others(
    case: &Case<'_>,
    term: &StepTerm<'_>,
    value: f64,
    slips: &[(TermSlip, f64)],
) -> Option<(f64, TermSlip)> {
    right(case, term).into_iter().find_map(|right| {
        let value = value / right;
        let mut slips = slips.iter().filter(|(_, wanted)| is(case, value, *wanted));
        let lacking = || slips.find(|(slip, _)| lacks(case, term, *slip)).map(|(slip, _)| *slip);
        let slip = in_some(case, term, value).then_some(TermSlip::InSome).or_else(lacking)?;
        Some((value, slip))
    })
}

/// The number of elements of a term that is their sum; 1 for other terms.
fn elements_of_sum(term: &StepTerm<'_>) -> f64 {
    let elements = |row: &MicrobatchTerm<'_>| row.term.shape.iter().product::<usize>();
    match term.rows.first() {
        Some(row) if term.of() == TermOf::Elements && row.term.kind == "sum" => {
            (elements(row) * row.term.terms) as f64
        }
        _ => 1.0,
    }
}

/// Returns the mistake that explains the sum of a term whose microbatches are means of each sample's sum, with the
/// multiple of such a mean's sum to which it leads.
fn by_sample(
    case: &Case<'_>,
    term: &StepTerm<'_>,
    value: f64,
    slips: &[(TermSlip, f64)],
) -> Option<(f64, TermSlip)> {
    let first = term.rows.first().filter(|_| term.of() == TermOf::Elements)?;
    let is_mean_of_sums = |row: &MicrobatchTerm<'_>| {
        let samples = row.term.shape.first().map_or(0, |it| *it);
        let mut constants = row.term.constants.iter();
        let divides = constants.any(|it| it.divides && it.factor == samples as f64);
        row.term.kind == "sum" && row.term.shape.get(1..) == first.term.shape.get(1..) && divides
    };
    let of_sample = first.term.shape.get(1..)?.iter().product::<usize>() as f64;
    let value = value / of_sample;
    let is_it =
        |(slip, wanted): &&(TermSlip, f64)| slip.is_of_one_count() && is(case, value, *wanted);
    let (slip, _) = slips.iter().find(is_it)?;
    term.rows.iter().all(is_mean_of_sums).then_some((value, *slip))
}

/// Returns the mistake that explains the sum of a term without regard to other terms, with the multiple of a mean's
/// sum to which it leads.
fn by_itself(
    case: &Case<'_>,
    term: &StepTerm<'_>,
    total: f64,
    value: f64,
    slips: &[(TermSlip, f64)],
) -> Option<(f64, TermSlip)> {
    let slips = || slips.iter().filter(|(_, wanted)| *wanted != 1.0);
    // A number that divides the loss explains its sum better than two mistakes at once, or than a missing division by
    // the ranks although the engine averages over them.
    let ranks = case.observed.replicas() as f64;
    let has_average = averages(case, term) && !has_factor(term, ranks);
    let is_doubtful = |slip: TermSlip| match slip {
        TermSlip::RanksForSteps | TermSlip::StepsForRanks => true,
        TermSlip::NotDividedByRanks => has_average,
        _ => false,
    };
    let exact = |doubtful: bool| {
        let mut slips = slips().filter(|(slip, _)| is_doubtful(*slip) == doubtful);
        slips.find(|(_, wanted)| is(case, value, *wanted)).map(|(slip, _)| *slip)
    };
    let by_number = exact(false)
        .or_else(|| averages_again(case, term, value).then_some(TermSlip::AveragedAgain))
        .or_else(|| other_count(term, value).map(TermSlip::OtherCount))
        .or_else(|| exact(true));
    let nearly = || {
        let is_near = |(slip, wanted): &&(TermSlip, f64)| {
            is_nearly(total, *wanted) && is_in_constants(case, term, *slip)
        };
        slips().find(is_near).map(|(slip, _)| *slip)
    };
    let by_count = || {
        if is_counted(term) {
            other_elements(case, term, total).first().copied()
        } else if is_averaged(term) {
            None
        } else {
            nearly()
        }
    };
    by_number.map(|slip| (value, slip)).or_else(|| by_count().map(|slip| (total, slip)))
}

/// Lists the known mistakes, each with the sum of weights to which it leads.
fn slips(case: &Case<'_>, term: &StepTerm<'_>) -> Vec<(TermSlip, f64)> {
    let ranks = case.observed.replicas() as f64;
    let steps = term.taken as f64;
    let mut all = vec![
        (TermSlip::NotDividedBySteps, steps),
        (TermSlip::DividedBySteps, 1.0 / steps),
        (TermSlip::NotDividedByRanks, ranks),
        (TermSlip::DividedByRanks, 1.0 / ranks),
        (TermSlip::NotDividedByEither, steps * ranks),
        (TermSlip::DividedByBoth, 1.0 / (steps * ranks)),
        (TermSlip::RanksForSteps, ranks / steps),
        (TermSlip::StepsForRanks, steps / ranks),
    ];
    if steps == ranks {
        let (missing, repeated) = of_equal_counts(case, term);
        all.retain(|(_, wanted)| *wanted != steps && *wanted != 1.0 / steps);
        all.extend([(missing, steps), (repeated, 1.0 / steps)]);
    }
    if let Some(scale) = loss_scale(term) {
        all.extend([(TermSlip::Scaled, scale), (TermSlip::UnscaledTwice, 1.0 / scale)]);
    }
    all
}

/// Returns the mistakes that a missing and a repeated division show if there are as many accumulation steps as ranks.
/// The sum of weights does not tell which of the two numbers is meant, but a package divides only by the steps, and an
/// engine only averages over the ranks.
fn of_equal_counts(case: &Case<'_>, term: &StepTerm<'_>) -> (TermSlip, TermSlip) {
    let share = 1.0 / term.taken as f64;
    let all = count(term, share, true);
    let packages = all - count(term, share, false);
    let averages = averages(case, term);
    let missing = if packages > 0 {
        TermSlip::NotDividedByRanks
    } else if averages && !has_factor(term, share) {
        TermSlip::NotDividedBySteps
    } else {
        TermSlip::NotDividedByOneOfBoth
    };
    let repeated = match all {
        0 if averages => TermSlip::DividedByRanks,
        _ if packages > 1 => TermSlip::DividedBySteps,
        _ => TermSlip::DividedByOneOfBoth,
    };
    (missing, repeated)
}

/// True if the factor of all gradients is that of a known engine's average over the ranks.
fn averages(case: &Case<'_>, term: &StepTerm<'_>) -> bool {
    let world = case.observed.spec.world_size as f64;
    let is_average = |factor: f64| {
        let mut scales = [1.0, loss_scale(term).unwrap_or(1.0)].into_iter();
        scales.any(|scale| is(case, factor * scale * world, 1.0))
    };
    contract::reducer(case).is_some() && term.factor.is_some_and(is_average)
}

/// The largest difference of two equal sums of weights, as a share of one of them.
pub(super) fn slack(case: &Case<'_>) -> f64 {
    match case.observed.spec.dtype {
        Dtype::Fp32 => bounds::SAME_SUM,
        Dtype::Bf16 | Dtype::Fp16 => bounds::SAME_SCALE,
    }
}

/// The number of means that a term adds up: the number of losses of its kind in the backward, unless the script
/// averages these by a number that is none of its own constants.
fn means(case: &Case<'_>, term: &StepTerm<'_>) -> f64 {
    let Some(MicrobatchTerm { term: first, loss, .. }) = term.rows.first() else { return 1.0 };
    let constants: f64 = first.constants.iter().map(LossConstant::value).product();
    let sum = first.total / (constants * loss.seed);
    let is_sum = (sum.abs() / first.terms as f64 - 1.0).abs() <= bounds::SAME_SCALE;
    let average = average_of_terms(case, term, first);
    let is_own = || own_constants(case, term).iter().any(|own| average == Some(*own));
    if is_sum && (average.is_none() || is_own()) { first.terms as f64 } else { 1.0 }
}

/// The constant that turns the sum of several losses of one kind into their average; `None` without one. A division by
/// their number may also be that by the accumulation steps or the ranks, if these are as many.
fn average_of_terms(case: &Case<'_>, term: &StepTerm<'_>, first: &LossTerm) -> Option<f64> {
    let terms = first.terms as f64;
    let is_count = terms == term.taken as f64 || terms == case.observed.replicas() as f64;
    let is_it = |it: &&LossConstant| {
        let is_sure = !is_count || it.written && !it.divides;
        is_sure && (it.value() * terms - 1.0).abs() < 1e-9
    };
    first.constants.iter().find(is_it).filter(|_| terms > 1.0).map(LossConstant::value)
}

/// Lists the sums of weights that a correct loss can have: as one mean, as several terms of one kind, as the mean over
/// samples of each sample's sum, or as the sum over all elements.
fn right(case: &Case<'_>, term: &StepTerm<'_>) -> Vec<f64> {
    let mut right = vec![1.0];
    let Some(first) = term.rows.first().map(|row| row.term) else { return right };
    // A script that averages several terms of one kind does not mean their sum.
    if average_of_terms(case, term, first).is_none()
        && term.rows.iter().all(|row| row.term.terms == first.terms)
    {
        right.push(first.terms as f64);
    }
    if term.of() == TermOf::Elements && first.kind.contains("sum") {
        let shape = first.shape.iter().rev();
        let sizes = shape.scan(1.0, |product, side| {
            *product *= *side as f64;
            Some(*product)
        });
        right.extend(sizes);
        right.push(elements_of_sum(term));
    }
    right
}

/// True if a loss is a sum that only the script's own constants scale.
fn is_plain_sum(term: &StepTerm<'_>, own: &[f64]) -> bool {
    let of_row = |row: &MicrobatchTerm<'_>| {
        let others =
            row.term.constants.iter().filter(|it| it.value() != 1.0 && !it.is_loss_scale());
        row.term.kind.starts_with("sum")
            && !row.term.kind.contains("mean")
            && others.count() <= own.len()
    };
    term.of() != TermOf::Parameters && term.rows.iter().all(of_row)
}

/// True if a loss is a sum whose elements the script weighs itself, so that it may or may not be a mean.
fn is_weighted_sum(term: &StepTerm<'_>) -> bool {
    term.rows.iter().all(|row| row.term.weighted && row.term.kind.contains("sum"))
}

impl SumVerdict {
    /// True for the sum of a mean, or nearly that: a loss that is divided by an expected count is nearly a mean.
    pub fn is_right(&self) -> bool {
        match self {
            Self::Mean => true,
            Self::Unexplained(value) => value.ln().abs() <= NEARLY,
            _ => false,
        }
    }
}
