//! The contract of a script and its packages in one line: who divides the loss by which number.

use std::collections::BTreeSet;

use super::{MicrobatchTerm, StepTerm, law, main};
use crate::bounds;
use crate::case::Case;
use zprobe_model::trace::{GradientsClipped, LossConstant, TermOf};
use zprobe_report::words::weight_text;

/// Describes the contract of a step; `None` if no loss was read.
pub fn describe(case: &Case<'_>, terms: &[StepTerm<'_>]) -> Option<String> {
    let term = main(terms)?;
    let mut parts = vec![reduction(term)];
    parts.extend(constants(term));
    parts.extend(seed(term));
    parts.extend(engine(case, term));
    parts.extend(clipping(case, term.step));
    parts.push(together(case, term)?);
    let mut all = vec![format!("loss: {}", parts.join("; "))];
    let others = terms.iter().filter(|it| it.number != term.number);
    all.extend(others.filter_map(|it| other(it)));
    Some(all.join("; "))
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
        kind => format!("{kind} over {range} {noun}"),
    }
}

/// Describes the constants of a term, each with the package or line that it comes from.
fn constants(term: &StepTerm<'_>) -> Vec<String> {
    let Some(first) = term.rows.first() else { return Vec::new() };
    let count = term.rows.iter().map(|row| row.term.constants.len()).min().unwrap_or(0);
    // The constants are listed from the elements to the loss, in the order in which they were applied.
    (0..count)
        .rev()
        .filter_map(|at| {
            let of_row = |row: &MicrobatchTerm<'_>| row.term.constants[at].factor;
            let (least, most) = term
                .rows
                .iter()
                .map(of_row)
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), it| {
                    (least.min(it), most.max(it))
                });
            let constant = &first.term.constants[at];
            (most != 1.0 || least != 1.0).then(|| constant_text(constant, least, most))
        })
        .collect()
}

fn constant_text(constant: &LossConstant, least: f64, most: f64) -> String {
    let sign = if constant.divides { "÷" } else { "×" };
    let (least, most) = (weight_text(least), weight_text(most));
    let number = if least == most { most } else { format!("{least} to {most}") };
    format!("{sign} {number}{}", origin(constant))
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

/// Describes the factor of all gradients between the loss and the optimizer; `None` if it is unknown or 1 on a single
/// rank.
fn engine(case: &Case<'_>, term: &StepTerm<'_>) -> Option<String> {
    let copies = case.observed.spec.world_size as f64 / case.observed.replicas() as f64;
    let factor = term.factor? * copies;
    let ranks = case.observed.replicas() as f64;
    let is = |wanted: f64| (factor / wanted - 1.0).abs() < bounds::SAME_SCALE;
    let engines = case.observed.script.remarks.values().flat_map(|it| it.engines.iter());
    let engines: BTreeSet<&str> = engines.map(String::as_str).collect();
    let reduces = ["DDP", "DeepSpeed", "FSDP", "FSDP2"];
    let by = reduces
        .iter()
        .find(|name| engines.contains(*name))
        .map_or(String::new(), |name| format!(" by {name}"));
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
