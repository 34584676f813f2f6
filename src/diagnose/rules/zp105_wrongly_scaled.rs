//! ZP105: every gradient has the same wrong weight.

use super::super::Case;
use super::super::deviation::{Pattern, SCALE_NOISE};
use super::{Rule, weight_text};
use crate::report::Finding;

pub(super) const RULE: Rule = Rule {
    code: "ZP105",
    name: "wrongly-scaled",
    crash: false,
    explained_by: &["ZP202", "ZP401", "ZP402"],
    doc: include_str!("../../../docs/rules/ZP105.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    case.deviations
        .iter()
        .filter_map(|deviation| {
            let Pattern::Scaled(factor) = deviation.pattern else { return None };
            let message = format!(
                "every gradient has weight {} instead of 1{}",
                weight_text(factor),
                likely(case, deviation.steps[0], factor),
            );
            Some(rule.deviation(deviation, message))
        })
        .fold(Vec::new(), super::merge)
}

/// The slips that lead to this factor.
fn likely(case: &Case<'_>, step: usize, factor: f64) -> String {
    let spec = case.observed.spec;
    let scale = case.observed.scaled.values().next().map_or(1.0, |scaled| scaled.scale);
    let clip = case.norms.of(step).map_or(1.0, |norm| spec.gradient_clipping / norm);
    let world = spec.world_size as f64;
    let ga = spec.gradient_accumulation_steps as f64;
    let close = |candidate: f64| (factor / candidate - 1.0).abs() < SCALE_NOISE;
    let slips: Vec<&str> = [
        (1.0 / ga, "divided by the accumulation steps twice"),
        (ga, "not divided by the accumulation steps"),
        (1.0 / world, "divided by the world size twice"),
        (world, "summed over the ranks but not divided by their number"),
        (-1.0, "of the wrong sign"),
        (scale, "multiplied by the loss scale, which was not taken out"),
        (1.0 / scale, "divided by the loss scale twice"),
        (if clip > 0.0 { clip.min(1.0) } else { 1.0 }, "clipped twice"),
    ]
    .into_iter()
    .filter_map(|(candidate, slip)| (candidate != 1.0 && close(candidate)).then_some(slip))
    .collect();
    if slips.is_empty() { String::new() } else { format!(": {}", slips.join(", or ")) }
}
