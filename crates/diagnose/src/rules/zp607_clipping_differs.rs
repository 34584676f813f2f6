//! ZP607: gradients are clipped by a wrong norm, at the wrong time, or by different factors on different ranks.

use std::collections::{BTreeMap, BTreeSet};

use crate::bounds;
use crate::case::Case;
use crate::loss::contract::{call_text, clipping_text};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::spec::Dtype;
use zprobe_model::trace::LEAST_LOSS_SCALE;
use zprobe_model::trace::{ClippedInVain, GradientsClipped, InVain};
use zprobe_report::words::{abridged, by_rank, counted, multiple_text, weight_text};
use zprobe_report::{Finding, RuleCode};

/// The share of the slack that applies to factors read from many elements, because only their sums are rounded.
const EXACT: f64 = 0.1;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP607"),
    name: "clipping-differs",
    crash: false,
    is_handed_on: false,
    // A rank with other gradients has another norm.
    explained_by: &RuleCode::all(["ZP101", "ZP102", "ZP104", "ZP110", "ZP605", "ZP606"]),
    doc: include_str!("../../docs/ZP607.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.script().is_none() {
        return Vec::new();
    }
    let ways = [by_parts, by_factors, scaled, in_vain, too_late];
    ways.iter().find_map(|way| way(case, rule)).into_iter().collect()
}

/// Iterates over the calls that clipped, as (step, rank, call).
fn calls<'a>(case: &'a Case<'_>) -> impl Iterator<Item = (usize, usize, &'a GradientsClipped)> {
    let all = case.observed.updates.clipped.iter();
    all.flat_map(|(&(step, rank), calls)| calls.iter().map(move |call| (step, rank, *call)))
}

fn finding(case: &Case<'_>, rule: &Rule, message: String, step: usize) -> Finding {
    let mut finding = Finding { step: Some(step), ..rule.finding(message) };
    let texts: BTreeSet<String> =
        calls(case).filter(|(at, ..)| *at == step).map(|(.., call)| clipping_text(call)).collect();
    finding.evidence.extend(texts);
    finding
}

/// Reports a norm that covers only the rank's own part of the gradients.
fn by_parts(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let world = case.observed.spec.world_size;
    let mut by_call: BTreeMap<(usize, usize), BTreeMap<usize, &GradientsClipped>> = BTreeMap::new();
    for (&(step, rank), calls) in &case.observed.updates.clipped {
        for (number, call) in calls.iter().enumerate() {
            by_call.entry((step, number)).or_default().insert(rank, call);
        }
    }
    by_call.into_iter().find_map(|((step, _), of_ranks)| {
        if of_ranks.len() < world || world == 1 {
            return None;
        }
        let copies = copies(case, &of_ranks).filter(|copies| *copies < world as f64)?;
        let shares: Vec<f64> = of_ranks.values().map(|call| call.share).collect::<Option<_>>()?;
        // Ranks with the same gradients may have clipped only some parameters, which happen to be as many elements as
        // a part.
        if shares.iter().all(|it| (it / shares[0] - 1.0).abs() <= bounds::COUNT) {
            return None;
        }
        let right = (shares.iter().sum::<f64>() / copies).sqrt();
        let used = |call: &GradientsClipped| match call.norm {
            Some(norm) => Some(norm),
            None if call.factor < 1.0 => Some(call.limit? / call.factor),
            None => None,
        };
        let (rank, call) = of_ranks.iter().find(|(_, call)| {
            used(call).is_some_and(|used| (used / right - 1.0).abs() > bounds::SAME_SCALE)
        })?;
        let used = used(call)?;
        let own = call.share?.sqrt();
        let is_own = (used / own - 1.0).abs() <= bounds::SAME_SCALE;
        let of = if is_own { ", the norm of only its own part" } else { "" };
        let message = format!(
            "gradients were clipped by a norm of {} on rank {rank}{of}; the norm of all gradients is {}",
            weight_text(used),
            weight_text(right),
        );
        Some(Sighting::one_of(finding(case, rule, message, step), Scope::step(step)))
    })
}

/// The number of ranks that have each clipped element; `None` if the calls did not clip the whole model.
fn copies(case: &Case<'_>, of_ranks: &BTreeMap<usize, &GradientsClipped>) -> Option<f64> {
    let params = case.plan.params().iter().filter(|param| param.trainable);
    let model: usize = params.map(|param| param.numel()).sum();
    let clipped: usize = of_ranks.values().map(|call| call.elements).sum();
    let copies = clipped as f64 / model as f64;
    // Engines pad their partitions, so that the sum is not exactly a multiple.
    let is_whole = (copies - copies.round()).abs() <= bounds::SAME_TOKEN * copies;
    (is_whole && copies >= 1.0).then(|| copies.round())
}

/// Reports factors after the loss that differ between ranks.
fn by_factors(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    // Before the reduction each rank has its own gradients, and so its own norm: the time of the call is the cause.
    let is_cause = |it: &&ClippedInVain| matches!(it.how, InVain::Early | InVain::BeforeReduction);
    if case.observed.updates.in_vain.values().flatten().any(is_cause) {
        return None;
    }
    let slack = match case.observed.spec.dtype {
        Dtype::Fp32 => bounds::SAME_TOKEN,
        Dtype::Bf16 | Dtype::Fp16 => bounds::SAME_SCALE,
    };
    let mut steps: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
    for (&(step, rank), calls) in &case.observed.updates.clipped {
        for call in calls {
            *steps.entry(step).or_default().entry(rank).or_insert(1.0) *= call.factor;
        }
    }
    let known = steps
        .into_iter()
        .find_map(|(step, factors)| differing(&factors, slack).then_some((step, factors)));
    let mut read: BTreeMap<usize, BTreeMap<usize, f64>> = BTreeMap::new();
    let mut slack = slack * EXACT;
    for (&(step, rank), factor) in &case.decoded.factors {
        read.entry(step).or_default().insert(rank, factor.value);
        slack = slack.max(2.0 * factor.slack);
    }
    for (&(step, rank), steps) in &case.observed.updates.stepped {
        if let Some(factor) = steps.iter().find_map(|it| it.factor) {
            read.entry(step).or_default().insert(rank, factor);
        }
    }
    let read = || {
        read.into_iter()
            .find_map(|(step, factors)| differing(&factors, slack).then_some((step, factors)))
    };
    let (step, factors) = known.or_else(read)?;
    let least = factors.values().copied().fold(f64::INFINITY, f64::min);
    let most = factors.values().copied().fold(0.0, f64::max);
    let message = format!(
        "ranks multiplied gradients by different factors, {least:.5} to {most:.5}, as if each clipped by a norm of its own",
    );
    let mut finding = finding(case, rule, message, step);
    finding
        .evidence
        .extend(by_rank(factors.iter().map(|(rank, factor)| (*rank, format!("× {factor:.6}")))));
    // Gradients that were wrong in any step may have had other norms in every step.
    Some(Sighting::one_of(finding, Scope::default()))
}

fn differing(factors: &BTreeMap<usize, f64>, slack: f64) -> bool {
    let Some(first) = factors.values().next() else { return false };
    factors.values().any(|it| (it / first - 1.0).abs() > slack)
}

/// Reports gradients that still contained the loss scale when they were clipped.
fn scaled(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let (step, _, call) =
        calls(case).find(|(.., call)| call.scale.is_some_and(|scale| scale != 1.0))?;
    let message = format!(
        "gradients were clipped to {} while they were still multiplied by the loss scale {}: call unscale_ first",
        call.limit.map_or("any norm".to_owned(), weight_text),
        weight_text(call.scale?),
    );
    Some(Sighting::one_of(finding(case, rule, message, step), Scope::step(step)))
}

/// Reports gradients that were clipped without effect, because no optimizer stepped with them.
fn in_vain(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let is_counted = are_counted(case);
    let is_judged = |it: &&ClippedInVain| match it.how {
        InVain::BeforeScaling => is_counted || it.factor.is_some_and(is_loss_scale),
        _ => true,
    };
    let all = || {
        let calls = case.observed.updates.in_vain.iter();
        let calls = calls.flat_map(|(rank, calls)| calls.iter().map(move |it| (*rank, *it)));
        calls.filter(|(_, it)| is_judged(it))
    };
    let (_, first) = all().min_by_key(|(rank, it)| (it.step, it.how, it.backwards, *rank))?;
    let of_kind = || all().filter(|(_, it)| it.how == first.how);
    let message = match first.how {
        InVain::Early => {
            let of_step = of_kind().filter(|(_, it)| it.step == first.step);
            let after: BTreeSet<usize> =
                of_step.filter_map(|(_, it)| it.backwards.checked_sub(1)).collect();
            let after: Vec<usize> = after.into_iter().collect();
            format!(
                "gradients were clipped after {} of the step, while they were still being added up",
                counted("microbatch", &after),
            )
        }
        InVain::Elsewhere => {
            "gradients were clipped, but no optimizer stepped with them: the next step was that \
             of other parameters, which were not clipped"
                .to_owned()
        }
        InVain::InPart => format!(
            "clip_grad_norm_ left out {}, which the optimizer updated too: their gradients were not clipped",
            abridged(&first.left),
        ),
        InVain::BeforeReduction => {
            "gradients were clipped before they were reduced over the ranks: each rank clipped by \
             its own norm"
                .to_owned()
        }
        InVain::BeforeScaling if is_counted && !first.factor.is_some_and(is_loss_scale) => format!(
            "gradients were clipped before they were divided by {}: the limit applied to a sum of gradients",
            first.factor.map_or_else(String::new, |factor| multiple_text(1.0 / factor)),
        ),
        InVain::BeforeScaling => format!(
            "gradients were clipped before they were multiplied by {}: the loss scale was still in them",
            first.factor.map_or_else(String::new, multiple_text),
        ),
        InVain::NoGradient => {
            "clip_grad_norm_ was called with parameters that have no gradients: the update uses \
             unclipped gradients"
                .to_owned()
        }
    };
    let mut finding = finding(case, rule, message, first.step);
    let places: BTreeSet<String> =
        of_kind().map(|(_, it)| call_text(it.by.as_ref(), it.at.as_ref())).collect();
    finding.evidence.extend(places.into_iter().map(|place| format!("without effect: {place}")));
    // The weights read in later steps contain these factors too.
    Some(Sighting::one_of(finding, Scope::default()))
}

/// True if all factors by which a script multiplied clipped gradients are divisions by a count: by the accumulation steps
/// or the ranks, or by a whole number that differs between steps, as a number of tokens does.
fn are_counted(case: &Case<'_>) -> bool {
    let all = case.observed.updates.in_vain.values().flatten();
    let factors = all.filter(|it| it.how == InVain::BeforeScaling).filter_map(|it| it.factor);
    let divisors: Vec<f64> = factors.map(|factor| 1.0 / factor).collect();
    let is_count = |it: &f64| *it > 1.5 && (it / it.round() - 1.0).abs() <= bounds::COUNT;
    let spec = case.observed.spec;
    let (ranks, steps) = (case.observed.replicas(), spec.gradient_accumulation_steps);
    let is_known = |it: &f64| [ranks, steps, ranks * steps].contains(&(it.round() as usize));
    let distinct: BTreeSet<usize> = divisors.iter().map(|it| it.round() as usize).collect();
    divisors.iter().all(is_count) && (distinct.len() > 1 || divisors.iter().any(is_known))
}

/// True for a factor that removes a loss scale from gradients.
fn is_loss_scale(factor: f64) -> bool {
    let exponent = -factor.log2();
    exponent >= LEAST_LOSS_SCALE.log2() - 0.5 && (exponent - exponent.round()).abs() < 0.01
}

/// Reports gradients that were clipped after the optimizer had stepped.
fn too_late(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let (step, ..) = calls(case).find(|(.., call)| call.late)?;
    let message = "gradients were clipped after the optimizer had stepped: the update uses unclipped gradients";
    Some(Sighting::one_of(finding(case, rule, message.to_owned(), step), Scope::step(step)))
}
