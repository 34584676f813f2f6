//! The constants by which a script multiplies or divides its loss: which of them are intended, and which reveal a
//! mistake.

use super::slip::TermSlip;
use super::{MicrobatchTerm, StepTerm};
use crate::case::Case;
use zprobe_model::trace::{ConstantKind, LossConstant, LossTerm};

/// The largest number of constants of the script that are examined.
const MOST_CONSTANTS: usize = 6;

/// Returns the script's own constants: those that all microbatches have and that do not normalise the loss.
pub(super) fn own_constants(case: &Case<'_>, term: &StepTerm<'_>) -> Vec<f64> {
    let Some(first) = term.rows.first() else { return Vec::new() };
    let in_all = |constant: &&LossConstant| {
        let has = |row: &MicrobatchTerm<'_>| {
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

/// Returns those of the script's own constants that cannot be a count. A constant may be a count if it equals the
/// number of microbatches or ranks and its line names such a number.
pub(super) fn certain(case: &Case<'_>, term: &StepTerm<'_>, own: &[f64]) -> Vec<f64> {
    let counts = [case.observed.replicas() as f64, term.taken as f64];
    let constants = || term.rows.iter().flat_map(|row| &row.term.constants);
    let is_named = |value: f64| {
        constants().any(|it| it.counted && it.kind == ConstantKind::Int && it.value() == value)
    };
    let is_counted =
        |value: f64| is_named(value) && counts.iter().any(|it| *it == value || *it == 1.0 / value);
    own.iter().copied().filter(|value| !is_counted(*value)).collect()
}

/// True if a constant may be a number of its own in the script, and not the count that turns a sum into a mean.
fn is_own(case: &Case<'_>, term: &StepTerm<'_>, constant: &LossConstant) -> bool {
    let ranks = case.observed.replicas() as f64;
    let steps = term.taken as f64;
    let number = constant.factor.abs();
    if constant.is_loss_scale() || constant.kind == ConstantKind::Tensor || number == 0.0 {
        return false;
    }
    let terms = term.rows.first().map_or(1, |row| row.loss.terms.len()) as f64;
    let is_count = |it: f64| number == it && it > 1.0;
    let is_share = |it: f64| (number * it - 1.0).abs() < 1e-6 && it > 2.0;
    // The number of elements of the whole step is a count in any kind of number.
    let is_of_elements = number == term.elements() as f64 && number > 2.0 * ranks * steps;
    match constant.kind {
        _ if constant.divides && is_of_elements => false,
        // A package only divides by a number that the loss needs.
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

/// Returns the products of all subsets of the numbers, starting with the product of all of them.
pub(super) fn products(numbers: &[f64]) -> Vec<f64> {
    let all = (1_usize << numbers.len()) - 1;
    let of = |chosen: usize| {
        let some = numbers.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1);
        some.map(|(_, number)| number.abs()).product()
    };
    (0..=all).rev().map(of).collect()
}

/// The number of constants of a term with this value. With `is_any`, constants that a package applies count too, and
/// not only those of the script.
pub(super) fn count(term: &StepTerm<'_>, value: f64, is_any: bool) -> usize {
    let constants = term.rows.first().into_iter().flat_map(|row| &row.term.constants);
    let of = constants.filter(|it| is_any || it.by.is_none());
    of.filter(|it| (it.value() / value - 1.0).abs() < 1e-9).count()
}

/// True if the loss was multiplied by this number, by one of its constants or by a hook.
pub(super) fn has_factor(term: &StepTerm<'_>, wanted: f64) -> bool {
    let is = |it: f64| (it / wanted - 1.0).abs() < 1e-9;
    let of_row = |row: &MicrobatchTerm<'_>| {
        is(row.loss.seed) || row.term.constants.iter().any(|it| is(it.value()))
    };
    term.rows.iter().any(of_row)
}

/// Returns the loss scale by which the whole loss was multiplied; `None` for a loss without a loss scale.
pub fn loss_scale(term: &StepTerm<'_>) -> Option<f64> {
    let constants = &term.rows.first()?.term.constants;
    let scales = constants.iter().filter(|it| it.is_loss_scale());
    scales.map(|it| it.value()).reduce(|product, it| product * it)
}

/// True if the mistake is an operation that this term lacks: other terms of the same loss are multiplied or divided by
/// that number in the script, and this term is not.
pub fn lacks(case: &Case<'_>, term: &StepTerm<'_>, slip: TermSlip) -> bool {
    let (ranks, steps) = (case.observed.replicas() as f64, term.taken as f64);
    let (number, divides) = match slip {
        TermSlip::DividedByRanks | TermSlip::DividedByOneOfBoth => (ranks, false),
        TermSlip::DividedBySteps => (steps, false),
        TermSlip::NotDividedByRanks | TermSlip::NotDividedByOneOfBoth => (ranks, true),
        TermSlip::NotDividedBySteps => (steps, true),
        _ => return false,
    };
    // A float is a coefficient that happens to be equal.
    let is_it = |it: &LossConstant| {
        let is_number = it.factor == number && it.kind != ConstantKind::Float;
        it.by.is_none() && !it.written && it.divides == divides && is_number
    };
    let has = |term: &LossTerm| term.constants.iter().any(is_it);
    number > 1.0 && term.rows.iter().all(|row| !has(row.term) && row.loss.terms.iter().any(has))
}

/// True if the constants of the loss show the mistake: a division that occurs twice, or a multiplication in the script
/// that the engine does not undo.
pub(super) fn is_in_constants(case: &Case<'_>, term: &StepTerm<'_>, slip: TermSlip) -> bool {
    let ranks = case.observed.replicas() as f64;
    let steps = term.taken as f64;
    match slip {
        TermSlip::DividedBySteps => count(term, 1.0 / steps, true) > 1,
        TermSlip::NotDividedByRanks | TermSlip::NotDividedByOneOfBoth => {
            count(term, ranks, false) > 0
        }
        TermSlip::DividedByRanks | TermSlip::DividedByOneOfBoth => {
            count(term, 1.0 / ranks, false) > 0
        }
        _ => false,
    }
}

/// True if a constant divides the loss by a count that depends on the data.
pub(super) fn is_data(constant: &LossConstant) -> bool {
    constant.divides && constant.kind == ConstantKind::Tensor
}
