//! The parts of a script's training that its verdict covers, and the parts that it does not cover.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::loss::scale::{SumVerdict, judge};
use crate::loss::{StepTerm, law, main};
use zprobe_report::words::{amount, weight_text};

/// Describes in one line which parts of a script's training were judged and which were not; `None` for runs without a
/// script.
pub fn describe(case: &Case<'_>, steps: &BTreeMap<usize, Vec<StepTerm<'_>>>) -> Option<String> {
    case.observed.spec.script()?;
    let (mut judged, mut not) = (Vec::new(), Vec::new());
    match scale(case, steps) {
        Ok(()) => judged.push("scale and weighting of the loss".to_owned()),
        Err(why) => not.push(format!("scale of the loss ({why})")),
    }
    let weights = "weights of all gradients".to_owned();
    if case.decoded.complete() {
        judged.push(weights)
    } else {
        not.push(weights)
    }
    let calls = case.observed.updates.clipped.values().flatten().count();
    match calls {
        0 => not.push("clipping (no call was seen)".to_owned()),
        calls => judged.push(amount(calls, "call") + " of clipping"),
    }
    let digests = case.observed.updates.digests.iter();
    let after = digests.filter(|((step, _), digests)| {
        step.is_some() && digests.numbers.iter().any(Option::is_some)
    });
    let mut updates: Vec<Option<usize>> = after.map(|((step, _), _)| *step).collect();
    updates.dedup();
    match updates.len() {
        0 => not.push("parameters after the step (they are sharded)".to_owned()),
        count => judged.push(format!("parameters after {}", amount(count, "step"))),
    }
    let judged = if judged.is_empty() { "nothing".to_owned() } else { judged.join(", ") };
    Some(if not.is_empty() { judged } else { format!("{judged}; not judged: {}", not.join(", ")) })
}

/// Checks that the scale of the loss was judged.
///
/// # Errors
///
/// Returns the reason why it was not judged.
fn scale(case: &Case<'_>, steps: &BTreeMap<usize, Vec<StepTerm<'_>>>) -> Result<(), String> {
    let recorded: Vec<usize> = case.observed.spec.recorded_steps().collect();
    let mut terms = steps.iter().filter(|(step, _)| recorded.contains(step));
    let Some(term) = terms.find_map(|(_, terms)| main(terms)) else {
        return Err("the terms of the loss were not read".to_owned());
    };
    let law = law::read(case.observed.spec, term).map(|it| it.law);
    let is_uneven = law.is_some_and(|law| law.is_uneven());
    match judge(case, term) {
        SumVerdict::Off(value, _) if is_uneven => Err(unexplained(case, term, value, is_uneven)),
        SumVerdict::Mean
        | SumVerdict::Off(..)
        | SumVerdict::Partial(..)
        | SumVerdict::Unmasked(_) => Ok(()),
        SumVerdict::Plain => Err("the loss is a sum without a division".to_owned()),
        SumVerdict::Unexplained(value) => Err(unexplained(case, term, value, is_uneven)),
        SumVerdict::Unknown => Err("it could not be read".to_owned()),
    }
}

/// Describes a sum of weights that no mistake about the whole loss explains, with the reason if it is known.
fn unexplained(case: &Case<'_>, term: &StepTerm<'_>, value: f64, is_uneven: bool) -> String {
    let (value, sum) = (weight_text(value), term.in_update().map(|it| weight_text(it.abs())));
    let own = if sum.is_some_and(|sum| sum != value) {
        " without the script's own constants"
    } else {
        ""
    };
    let counts = case.observed.microbatches(term.step);
    let why = if counts.iter().min() != counts.iter().max() {
        ": ranks took different numbers of microbatches"
    } else if is_uneven {
        ": microbatches have different weights"
    } else {
        ", for an unknown reason"
    };
    format!("{value} times a mean{own}{why}")
}
