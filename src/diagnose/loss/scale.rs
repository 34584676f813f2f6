//! The sum of the weights of a term's elements, and the slip that explains it where it is not that of a mean.
//!
//! A mean has the sum 1. Constants of the script's own (the coefficient of an auxiliary loss, the squared
//! temperature of a distillation) are nodes between the loss and its elements: only what they leave
//! unexplained is judged.

use super::super::Case;
use super::super::bounds;
use super::{Row, Term};
use crate::spec::{Dtype, Scale};
use crate::trace::{ConstantKind, LossConstant, TermOf};

/// Least power of two that is a loss scale, and no constant of a script's own.
const LEAST_LOSS_SCALE: f64 = 128.0;

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
    /// A number that nothing explains.
    Unexplained(f64),
    /// Not read.
    Unknown,
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
    let is_mean = |total: f64| products.iter().any(|own| is_right(total / own));
    if is_mean(total) || of_all_lines.is_some_and(is_mean) {
        return Sum::Mean;
    }
    if is_plain_sum(term, &free) || is_weighted_sum(term) {
        return Sum::Plain;
    }
    let own: f64 = free.iter().product();
    let value = total / own / means(term);
    if term.taken < term.full && is(value, term.taken as f64 / term.full as f64) {
        return Sum::Partial(term.taken, term.full);
    }
    let mut slips = slips(case, term).into_iter();
    if let Some((slip, _)) = slips.find(|(_, wanted)| *wanted != 1.0 && is(value, *wanted)) {
        return if slip.is_meant(demanded) { Sum::Mean } else { Sum::Off(value, slip) };
    }
    if demanded == Scale::Any { Sum::Mean } else { Sum::Unexplained(value) }
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
            Slip::DividedBySteps => !over(1.0 / steps),
            Slip::NotDividedBySteps => !average || over(1.0 / steps),
            _ => false,
        };
        all.retain(|(slip, _)| !is_other(*slip));
    }
    if let Some(scale) = scale {
        all.extend([(Slip::Scaled, scale), (Slip::UnscaledTwice, 1.0 / scale)]);
    }
    all
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
    let free = constants.filter(|it| is_own(case, term, it)).map(LossConstant::value);
    free.filter(|it| *it != 1.0).take(MOST_CONSTANTS).collect()
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
        ConstantKind::Int => constant.written || !is_count(ranks),
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
