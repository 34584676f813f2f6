//! ZP111: the weights of the whole loss do not sum to 1, the sum of a mean.

use std::collections::{BTreeMap, BTreeSet};

use crate::bounds;
use crate::case::Case;
use crate::deviation::{Deviation, Pattern};
use crate::loss::constants::lacks;
use crate::loss::contract;
use crate::loss::counts::other_elements;
use crate::loss::law::{self, Law};
use crate::loss::scale::{SumVerdict, judge_all};
use crate::loss::slip::TermSlip;
use crate::loss::{StepTerm, by_step, main};
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::trace::{ConstantKind, LossTerm, LossWeighed};
use zprobe_report::words::{abridged, multiple_text};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP111"),
    name: "loss-scaled",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP110", "ZP113"]),
    doc: include_str!("../../docs/ZP111.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let Slips { windows, whole } = slips_of(case);
    let windows = windows.iter().map(|(term, taken, of)| partial(rule, term, *taken, *of));
    let whole = whole.map(|whole| of_whole(case, rule, &whole));
    windows.chain(whole).chain(long_window(case, rule)).collect()
}

/// Reports a window with more microbatches than its loss is divided by, such as a window with the microbatches that were
/// left over at the end of an epoch. Only the first microbatches of the window have codes. In a script with several lines
/// that call backward, the other backwards may be those of further losses, and not of further microbatches. The first
/// step may have several windows, if an optimizer takes its first step late.
fn long_window(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let script = &case.observed.script;
    let of = case.observed.spec.script().map(|_| case.observed.spec.gradient_accumulation_steps)?;
    let has_one_line = script.remarks.values().all(|it| it.backward_at.len() == 1);
    let is_long = |(step, rank): (usize, usize), taken: usize| {
        step > 0 && taken > of && script.ended.get(&(0, rank)) == Some(&of)
    };
    let is_aside = |(step, rank): (usize, usize)| {
        script.set_aside.keys().any(|(at, of, _)| (*at, *of) == (step, rank))
    };
    let divides_by = |term: &LossTerm, number: usize| {
        term.constants.iter().any(|it| {
            let is_count =
                it.kind == ConstantKind::Int && it.by.is_none() && (!it.written || number > 2);
            it.divides && is_count && it.factor == number as f64
        })
    };
    let mut long =
        script.ended.iter().filter(|(at, taken)| is_long(**at, **taken) && !is_aside(**at));
    let ((step, _), taken, losses, divisors) = long.find_map(|(at, taken)| {
        let losses = script.losses.get(at).filter(|it| !it.is_empty())?;
        let divisor_of = |it: &LossTerm| {
            let divisor = (2..=of).rev().find(|number| divides_by(it, *number));
            divisor.filter(|_| !divides_by(it, *taken))
        };
        // All terms of a loss must have the same divisor.
        let divisor = |it: &LossWeighed| {
            let divisors: Option<BTreeSet<usize>> = it.terms.iter().map(divisor_of).collect();
            divisors.filter(|all| all.len() == 1)?.first().copied()
        };
        let divisors: Vec<usize> = losses.iter().map(|it| divisor(it)).collect::<Option<_>>()?;
        (has_one_line && divisors.contains(&of)).then_some((at, taken, losses, divisors))
    })?;
    // The microbatches without codes end a full window.
    let known: f64 = divisors.iter().map(|number| 1.0 / *number as f64).sum();
    let weight = known + (*taken as f64 - divisors.len() as f64) / of as f64;
    let by: BTreeSet<usize> = divisors.into_iter().collect();
    let by: Vec<String> = by.iter().map(usize::to_string).collect();
    let message = format!(
        "the window of step {step} has {taken} microbatches, but its loss is divided by {}: the window has {} times \
         the weight of the others",
        by.join(" or "),
        multiple_text(weight),
    );
    let mut finding = Finding { step: Some(*step), ..rule.finding(message) };
    let lines: BTreeSet<&String> = losses.iter().filter_map(|loss| loss.at.as_ref()).collect();
    finding.evidence.extend(lines.into_iter().map(|at| format!("backward at {at}")));
    Some(Sighting::one_of(finding, Scope::step(*step)))
}

/// True if the deviation is no error: these parameters have another factor, which cancels the wrong scale of the loss.
/// In their update the loss weighs what a mean does, and it is wrong for all other parameters.
pub(super) fn is_right_for(case: &Case<'_>, deviation: &Deviation) -> bool {
    matches!(deviation.pattern, Pattern::Scaled(_))
        && deviation.params.is_some()
        && slips_of(case).whole.is_some_and(|whole| undoes(case, deviation, whole.value))
}

/// True if the parameters of a deviation have, in every step and in all of their elements, the weight that cancels
/// this sum of the loss.
fn undoes(case: &Case<'_>, deviation: &Deviation, value: f64) -> bool {
    let is_it = |it: &Deviation| {
        let makes_up = |weight: f64| (weight * value - 1.0).abs() <= bounds::SAME_SCALE;
        let is_whole = it.elements.is_empty() && it.params.is_some();
        is_whole && matches!(it.pattern, Pattern::Scaled(weight) if makes_up(weight))
    };
    let alike = || case.deviations.iter().filter(|it| is_it(it));
    let is_in_each_step = |param: &String| {
        let having = alike().filter(|it| it.params.iter().flatten().any(|other| other == param));
        let steps: BTreeSet<usize> = having.map(|it| it.step).collect();
        case.observed.spec.recorded_steps().all(|step| steps.contains(&step))
    };
    is_it(deviation) && deviation.params.iter().flatten().all(is_in_each_step)
}

/// The mistakes about the scale of a loss: in single windows, and in the whole loss.
#[derive(Default)]
struct Slips<'a> {
    /// The windows with fewer microbatches than they are divided by, as (a term, its microbatches, the divisor).
    windows: Vec<(StepTerm<'a>, usize, usize)>,
    /// The mistake about the whole loss, if there is one.
    whole: Option<Whole<'a>>,
}

/// A mistake about the scale of the whole loss.
struct Whole<'a> {
    /// The terms of the loss in a step with the mistake.
    terms: Vec<StepTerm<'a>>,
    /// The sum of the weights; 1 for a mean.
    value: f64,
    slip: TermSlip,
    /// The recorded steps, which all have the mistake.
    steps: Extent<usize>,
}

fn slips_of<'a>(case: &Case<'a>) -> Slips<'a> {
    let mut found = Slips::default();
    if case.observed.spec.script().is_none() {
        return found;
    }
    let steps = by_step(case);
    let recorded: Vec<usize> = case.observed.spec.recorded_steps().collect();
    let mut slips: Vec<Option<(usize, f64, TermSlip)>> = Vec::new();
    let is_uneven = |terms: &Vec<StepTerm<'_>>| {
        let law = main(terms).and_then(|term| law::read(case.observed.spec, term));
        law.is_some_and(|it| it.law.is_uneven())
    };
    for (&step, terms) in &steps {
        let sums = judge_all(case, terms);
        if let Some((taken, of)) = sums.iter().find_map(|sum| match sum {
            SumVerdict::Partial(taken, of) => Some((*taken, *of)),
            _ => None,
        }) {
            found.windows.push((terms[0].clone(), taken, of));
        } else if recorded.contains(&step) {
            let is_of_one_term = |slip: TermSlip| {
                terms.iter().zip(&sums).any(|(term, sum)| {
                    let is_off = matches!(sum, SumVerdict::Off(_, other) if *other == slip);
                    is_off && lacks(case, term, slip)
                })
            };
            let slip = common(&sums)
                .filter(|(_, slip)| !is_of_own_ranks(case, terms, *slip) && !is_of_one_term(*slip));
            // A short window shows a wrong count of elements, but no wrong number of microbatches.
            let is_full = terms.iter().all(|term| term.taken >= term.full);
            if is_full || slip.is_some_and(|(_, slip)| slip.is_count()) {
                slips.push(slip.map(|(value, slip)| (step, value, slip)));
            }
        }
    }
    // A real slip occurs in each step, whereas a number that depends on the data differs between steps.
    let Some(slips) = slips.into_iter().collect::<Option<Vec<_>>>() else { return found };
    let Some((step, value, _)) = slips.first().copied() else { return found };
    // The sum of weights that differ between microbatches in every step says nothing about the whole loss.
    if recorded.iter().filter_map(|step| steps.get(step)).all(is_uneven) {
        return found;
    }
    let of_step = steps.get(&step).cloned();
    let all = || slips.iter().map(|(step, ..)| *step).collect();
    found.whole = of_all_steps(case, &steps, &slips).zip(of_step).map(|(slip, terms)| Whole {
        terms,
        value,
        slip,
        steps: all(),
    });
    found
}

/// True if the mistake is that ranks divide by only their own elements: all weights together are then too large by the
/// number of ranks.
fn is_of_own_ranks(case: &Case<'_>, terms: &[StepTerm<'_>], slip: TermSlip) -> bool {
    let spec = case.observed.spec;
    let law = main(terms).and_then(|term| Some((term, law::read(spec, term)?.law)));
    law.is_some_and(|(term, law)| {
        let are_as_many = term.taken == case.observed.replicas();
        let is_by_ranks =
            matches!(slip, TermSlip::NotDividedByRanks | TermSlip::NotDividedByOneOfBoth)
                || are_as_many && slip == TermSlip::NotDividedBySteps;
        law == Law::Rank && is_by_ranks
    })
}

/// Returns the mistake that explains the sums of all steps; `slips` has (step, sum, likeliest mistake).
fn of_all_steps(
    case: &Case<'_>,
    steps: &BTreeMap<usize, Vec<StepTerm<'_>>>,
    slips: &[(usize, f64, TermSlip)],
) -> Option<TermSlip> {
    let first = slips.first()?.2;
    if !slips.iter().all(|(_, _, slip)| slip.is_count()) {
        return slips.iter().all(|(_, _, slip)| *slip == first).then_some(first);
    }
    // A count that agrees by chance does not agree in two steps, as each step has its own counts.
    let values: BTreeSet<u64> = slips.iter().map(|(_, value, _)| value.to_bits()).collect();
    let possible = |step: &usize, value: f64| -> Vec<TermSlip> {
        let terms = steps.get(step).into_iter().flatten();
        terms.flat_map(|term| other_elements(case, term, value)).collect()
    };
    let of_steps: Vec<Vec<TermSlip>> =
        slips.iter().map(|(step, value, _)| possible(step, *value)).collect();
    let mut of_first = of_steps.first()?.iter().copied();
    of_first.find(|slip| values.len() > 1 && of_steps.iter().all(|it| it.contains(slip)))
}

/// Returns the mistake that all judged terms have in common, with their common sum; `None` if some terms are right or
/// have other mistakes.
fn common(sums: &[SumVerdict]) -> Option<(f64, TermSlip)> {
    let judged: Vec<&SumVerdict> = sums
        .iter()
        .filter(|sum| {
            !matches!(
                sum,
                SumVerdict::Unknown
                    | SumVerdict::Plain
                    | SumVerdict::Unmasked(_)
                    | SumVerdict::Unexplained(_)
            )
        })
        .collect();
    let SumVerdict::Off(value, slip) = judged.first()? else { return None };
    // A term that is off as much as the others may look nearly right.
    let is_off = |sum: &SumVerdict| matches!(sum, SumVerdict::Unexplained(it) if (it / value - 1.0).abs() <= bounds::SAME_SCALE);
    if sums.iter().any(|sum| sum.is_right() && !is_off(sum)) {
        return None;
    }
    let is_same = |sum: &&SumVerdict| matches!(sum, SumVerdict::Off(_, other) if other == slip);
    judged.iter().all(is_same).then_some((*value, *slip))
}

fn of_whole(case: &Case<'_>, rule: &Rule, whole: &Whole<'_>) -> Sighting {
    let Whole { terms, value, slip, steps } = whole;
    let (value, slip) = (*value, *slip);
    let term = &terms[0];
    let ranks = case.observed.replicas();
    let right = case.deviations.iter().filter(|it| undoes(case, it, value));
    let right: BTreeSet<String> =
        right.flat_map(|it| it.params.iter().flatten().cloned()).collect();
    let right: Vec<String> = right.into_iter().collect();
    let place = match right.as_slice() {
        [] => String::new(),
        right => format!(" in the update of all parameters but {}", abridged(right)),
    };
    let why = match slip {
        TermSlip::DividedBySteps | TermSlip::DividedByOneOfBoth if term.is_of_window() => format!(
            "divided by the accumulation steps ({}), although each microbatch has the loss of all microbatches",
            term.taken
        ),
        _ => slip.describe(term.taken, ranks),
    };
    let message =
        format!("the loss has {} times the weight of a mean{place}: {why}", multiple_text(value));
    let mut finding = rule.finding(message);
    finding.evidence.extend(contract::describe(case, terms));
    if !right.is_empty() {
        finding.evidence.push(
            "some modules reduce gradients with another divisor; FSDP2's set_gradient_divide_factor sets the divisor \
             of one module only"
                .to_owned(),
        );
    }
    finding.evidence.extend(term.backward_lines());
    finding.evidence.extend(remedy(case, term, slip));
    finding.evidence.extend(effect(case, value));
    finding.evidence.extend(own_factor(term, value).filter(|_| terms.len() == 1));
    Sighting::one_of(finding, Scope { steps: steps.clone(), ..Scope::default() })
}

fn partial(rule: &Rule, term: &StepTerm<'_>, taken: usize, of: usize) -> Sighting {
    let message = format!(
        "the window of step {} has {taken} of {of} microbatches, but its loss is divided by {of}: the window has {} \
         times the weight of the others",
        term.step,
        multiple_text(taken as f64 / of as f64),
    );
    let mut finding = Finding { step: Some(term.step), ..rule.finding(message) };
    finding.evidence.extend(term.backward_lines());
    Sighting::one_of(finding, Scope::step(term.step))
}

/// Returns advice about the division by the accumulation steps, which depends on the trainer; `None` for other
/// mistakes and unknown trainers.
pub(super) fn remedy(case: &Case<'_>, term: &StepTerm<'_>, slip: TermSlip) -> Option<String> {
    let steps = term.taken;
    let constants = term.rows.iter().flat_map(|row| row.term.constants.iter());
    let own = constants.filter(|it| it.divides && it.by.is_none() && it.factor == steps as f64);
    let lines: BTreeSet<&str> = own.filter_map(|it| it.at.as_deref()).collect();
    let lines: Vec<&str> = lines.into_iter().collect();
    let at = if lines.is_empty() { String::new() } else { format!(" at {}", lines.join(", ")) };
    let engines: Vec<&str> = case
        .observed
        .script
        .remarks
        .values()
        .flat_map(|it| it.engines.iter())
        .map(String::as_str)
        .collect();
    let has = |name: &str| engines.contains(&name);
    let already = || {
        Some(if has("transformers.Trainer") {
            "the Trainer already divides the loss"
        } else if has("Lightning") {
            "Lightning already divides the loss that training_step returns"
        } else if has("DeepSpeed") {
            "engine.backward already divides by gradient_accumulation_steps"
        } else if has("accelerate") {
            "accelerator.backward already divides by gradient_accumulation_steps"
        } else {
            return None;
        })
    };
    let both = format!("{steps} is both the accumulation steps and the number of ranks");
    match slip {
        TermSlip::DividedBySteps => match already() {
            Some(already) => Some(format!("{already}: leave out the division{at}")),
            None => (!lines.is_empty()).then(|| format!("the divisions are{at}")),
        },
        TermSlip::DividedByOneOfBoth => {
            let already = already().map_or(String::new(), |already| format!("; {already}"));
            let lines = if lines.is_empty() { at } else { format!(" (divisions{at})") };
            Some(format!(
                "{both}{already}: leave out the second division by the steps, or the one by the ranks if gradients \
                 are averaged over them{lines}"
            ))
        }
        TermSlip::NotDividedByOneOfBoth => Some(format!(
            "{both}: divide the loss by the steps, or the gradients by the ranks, whichever the script does not do yet\
             {}",
            if lines.is_empty() { at } else { format!(" (it divides{at})") },
        )),
        TermSlip::NotDividedBySteps if has("transformers.Trainer") => Some(
            "the Trainer does not divide if compute_loss accepts num_items_in_batch: divide the sum by \
             num_items_in_batch"
                .to_owned(),
        ),
        TermSlip::NotDividedBySteps if has("accelerate") => Some(
            "call accelerator.backward(loss), which divides, or divide by gradient_accumulation_steps".to_owned(),
        ),
        TermSlip::NotDividedBySteps if has("DeepSpeed") => {
            Some("call engine.backward(loss) with its scaling, or divide the loss".to_owned())
        }
        _ => None,
    }
}

/// Describes the factor between the sum of all weights, as in the contract, and the part of the sum that is judged; `None`
/// if the whole sum is judged.
pub(super) fn own_factor(term: &StepTerm<'_>, value: f64) -> Option<String> {
    let sum = term.in_update()?.abs();
    let own = sum / value;
    ((own - 1.0).abs() > bounds::SAME_SCALE).then(|| {
        let [sum, value, own] = [sum, value, own].map(multiple_text);
        format!("the weights add up to {sum}: {value} times {own}, the script's own factor")
    })
}

/// Describes the effect of a common factor under the optimizer in use.
fn effect(case: &Case<'_>, value: f64) -> Option<String> {
    let (_, inner) = case.observed.software.optimizer?;
    let value = multiple_text(value);
    Some(if inner.contains("SGD") {
        format!(
            "with {inner}, this acts as a learning rate that is {value} times the configured one"
        )
    } else {
        format!(
            "{inner} cancels a common factor, so the loss curve does not show it; but norm clipping and epsilon see \
             gradients {value} times as large"
        )
    })
}
