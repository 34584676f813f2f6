//! The contract of a script and its packages in one line: who divides the loss by which number.

use std::collections::{BTreeMap, BTreeSet};

use super::law::{self, Odd};
use super::{StepTerm, main};
use crate::bounds;
use crate::case::Case;
use zprobe_model::trace::{GradientsClipped, LossConstant, TermOf};
use zprobe_report::words::weight_text;

/// Describes the contract of a step; `None` if no loss was read.
pub fn describe(case: &Case<'_>, terms: &[StepTerm<'_>]) -> Option<String> {
    Some(format!("loss: {}", text(case, terms)?))
}

/// Describes the contract of a run: that of the first recorded step, which the text names if other steps have other
/// numbers. `None` if no loss was read.
pub fn of_run(case: &Case<'_>, steps: &BTreeMap<usize, Vec<StepTerm<'_>>>) -> Option<String> {
    let recorded = case.observed.spec.recorded_steps().filter_map(|step| steps.get(&step));
    let recorded: Vec<&Vec<StepTerm<'_>>> = recorded.collect();
    let terms = recorded.first().copied().or(steps.values().next_back())?;
    let of_step = text(case, terms)?;
    let is_same = recorded.iter().all(|terms| text(case, terms).as_ref() == Some(&of_step));
    let step = if is_same { String::new() } else { format!("in step {}, ", terms[0].step) };
    Some(format!("loss: {step}{of_step}"))
}

fn text(case: &Case<'_>, terms: &[StepTerm<'_>]) -> Option<String> {
    let term = main(terms)?;
    let mut parts = vec![reduction(term)];
    parts.extend(constants(term));
    parts.extend(seed(term));
    parts.extend(engine(case, term));
    parts.extend(clipping(case, term.step));
    parts.push(together(case, term)?);
    let others = terms.iter().filter(|it| it.number != term.number);
    parts.extend(others.filter_map(|it| other(it)));
    Some(parts.join("; "))
}

/// Describes the reduction of the elements of a term.
fn reduction(term: &StepTerm<'_>) -> String {
    let Some(first) = term.rows.first() else { return String::new() };
    let counts = term.rows.iter().map(|row| row.elements);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let noun = if most == 1 { term.noun().to_owned() } else { format!("{}s", term.noun()) };
    match first.term.kind.as_str() {
        "value" => format!("the value of {}", term.name()),
        kind if term.is_of_window() => {
            format!("{kind} over {range} {noun} of all microbatches, in each microbatch")
        }
        kind => format!("{kind} over {range} {noun}"),
    }
}

/// An operation of the script with a constant, in the microbatches that have it.
struct Operation<'a> {
    constant: &'a LossConstant,
    /// The number of operations that the microbatches apply before this one at the same place.
    earlier: usize,
    /// The microbatches, by their indices in the rows of the term, each with its value of the constant.
    values: BTreeMap<usize, f64>,
}

/// Describes the constants of a term, each with the package or line that it comes from.
fn constants(term: &StepTerm<'_>) -> Vec<String> {
    let are_alike = |it: &LossConstant, other: &LossConstant| {
        (&it.at, &it.by, it.divides) == (&other.at, &other.by, other.divides)
    };
    let mut operations: Vec<Operation<'_>> = Vec::new();
    for (row, of_row) in term.rows.iter().enumerate() {
        // The constants are listed from the elements to the loss, in the order in which they were applied.
        let constants: Vec<&LossConstant> = of_row.term.constants.iter().rev().collect();
        let mut next = 0;
        for (at, &constant) in constants.iter().enumerate() {
            let earlier = constants[..at].iter().filter(|it| are_alike(it, constant)).count();
            let is_it =
                |it: &Operation<'_>| it.earlier == earlier && are_alike(it.constant, constant);
            let known = operations.iter().position(is_it).unwrap_or_else(|| {
                operations.insert(next, Operation { constant, earlier, values: BTreeMap::new() });
                next
            });
            operations[known].values.insert(row, constant.factor);
            next = known + 1;
        }
    }
    let is_one = |it: &Operation<'_>| it.values.values().all(|value| *value == 1.0);
    operations.iter().filter(|it| !is_one(it)).map(|it| operation_text(term, it)).collect()
}

fn operation_text(term: &StepTerm<'_>, operation: &Operation<'_>) -> String {
    let Operation { constant, values, .. } = operation;
    let sign = if constant.divides { "÷" } else { "×" };
    let least = weight_text(values.values().copied().fold(f64::INFINITY, f64::min));
    let most = weight_text(values.values().copied().fold(f64::NEG_INFINITY, f64::max));
    let number = if least == most { most } else { format!("{least} to {most}") };
    let rows: Vec<usize> = values.keys().copied().collect();
    let only = match Odd::of(&term.rows, &rows) {
        _ if rows.len() == term.rows.len() => String::new(),
        Some(odd) => format!(" for {}", odd.describe()),
        None => " for some microbatches".to_owned(),
    };
    format!("{sign} {number}{}{only}", origin(constant))
}

/// Describes the origin of a constant: a package, or a line of the user's code.
pub fn origin(constant: &LossConstant) -> String {
    match (&constant.by, &constant.at) {
        (Some(package), _) => format!(" by {package}"),
        (None, Some(at)) => format!(" ({at})"),
        (None, None) => String::new(),
    }
}

/// Describes the factor by which a hook or an argument of backward multiplied the loss; `None` for a factor of 1.
fn seed(term: &StepTerm<'_>) -> Option<String> {
    let seeds: BTreeSet<String> = term.rows.iter().map(|row| weight_text(row.loss.seed)).collect();
    let is_one = seeds.iter().all(|seed| seed == "1");
    (!is_one).then(|| {
        let seeds: Vec<String> = seeds.into_iter().collect();
        format!("× {} by a hook or an argument of backward", seeds.join(" and "))
    })
}

/// Returns the name of the engine that reduces the gradients of a script over the ranks; `None` if no known engine does.
pub(super) fn reducer(case: &Case<'_>) -> Option<&'static str> {
    let engines = case.observed.script.remarks.values().flat_map(|it| it.engines.iter());
    let engines: BTreeSet<&str> = engines.map(String::as_str).collect();
    ["DDP", "DeepSpeed", "FSDP", "FSDP2"].into_iter().find(|name| engines.contains(name))
}

/// Describes the factor of all gradients between the loss and the optimizer; `None` if it is unknown or 1 on a single
/// rank.
fn engine(case: &Case<'_>, term: &StepTerm<'_>) -> Option<String> {
    let copies = case.observed.spec.world_size as f64 / case.observed.replicas() as f64;
    let factor = term.factor? * copies;
    let ranks = case.observed.replicas() as f64;
    let is = |wanted: f64| (factor / wanted - 1.0).abs() < bounds::SAME_SCALE;
    let by = reducer(case).map_or(String::new(), |name| format!(" by {name}"));
    if is(1.0 / ranks) && ranks > 1.0 {
        Some(format!("÷ {ranks}{by}"))
    } else if is(1.0) {
        (ranks > 1.0).then(|| format!("summed over {ranks} ranks{by}"))
    } else {
        let scale = super::constants::loss_scale(term);
        match scale.filter(|scale| is(1.0 / (ranks * scale))) {
            Some(scale) if ranks > 1.0 => {
                Some(format!("÷ {ranks}{by}; ÷ {} (unscaled)", weight_text(scale)))
            }
            Some(scale) => Some(format!("÷ {} (unscaled)", weight_text(scale))),
            None => Some(format!("× {} after the loss", weight_text(factor))),
        }
    }
}

/// Describes the clipping of a step on rank 0, one call per entry; empty if nothing was clipped.
pub fn clipping(case: &Case<'_>, step: usize) -> Vec<String> {
    let calls = case.observed.updates.clipped.get(&(step, 0)).into_iter().flatten();
    calls.map(|call| clipping_text(call)).collect()
}

/// Describes a call that clips, with its factor.
pub fn clipping_text(call: &GradientsClipped) -> String {
    format!("× {} by {}", weight_text(call.factor), call_text(call.by.as_ref(), call.at.as_ref()))
}

/// Describes a call that clips: the package that makes it, and its line.
pub fn call_text(by: Option<&String>, at: Option<&String>) -> String {
    match (by, at) {
        (Some(package), None) => package.clone(),
        (Some(package), Some(at)) => format!("clip_grad_norm_ by {package} ({at})"),
        (None, Some(at)) => format!("clip_grad_norm_ ({at})"),
        (None, None) => "clip_grad_norm_".to_owned(),
    }
}

/// Describes the weight of each element of the step in the update.
fn together(case: &Case<'_>, term: &StepTerm<'_>) -> Option<String> {
    let weights = law::read(case.observed.spec, term)?;
    let sum = term.in_update().map(weight_text);
    let law = weights.describe(term.noun());
    Some(match sum {
        Some(sum) => format!("together {sum}: {law}"),
        None => law,
    })
}

/// Describes another term of the loss; `None` if its weight in the update is unknown.
fn other(term: &StepTerm<'_>) -> Option<String> {
    let sum = weight_text(term.in_update()?);
    let constants = constants(term);
    let constants =
        if constants.is_empty() { String::new() } else { format!(", {}", constants.join(", ")) };
    let what = match term.of() {
        TermOf::Parameters => "penalty on parameters".to_owned(),
        _ => format!("{} of {}", reduction(term), term.name()),
    };
    Some(format!("in addition {what}{constants}: together {sum}"))
}
