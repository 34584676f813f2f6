//! ZP105: every gradient has the same wrong weight.

use super::super::Case;
use super::super::deviation::{Pattern, SCALE_NOISE};
use super::{Rule, weight_text};
use crate::report::Finding;
use crate::spec::RunSpec;

pub(super) const RULE: Rule = Rule {
    code: "ZP105",
    name: "wrongly-scaled",
    crash: false,
    explained_by: &[],
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
                likely(case.observed.spec, factor),
            );
            Some(rule.deviation(deviation, message))
        })
        .fold(Vec::new(), super::merge)
}

/// The slips that lead to this factor.
fn likely(spec: &RunSpec, factor: f64) -> String {
    let world = spec.world_size as f64;
    let ga = spec.gradient_accumulation_steps as f64;
    let close = |candidate: f64| (factor / candidate - 1.0).abs() < SCALE_NOISE;
    let slips: Vec<&str> = [
        (1.0 / ga, "divided by the accumulation steps twice"),
        (ga, "not divided by the accumulation steps"),
        (1.0 / world, "divided by the world size twice"),
        (world, "summed over the ranks but not divided by their number"),
        (-1.0, "of the wrong sign"),
    ]
    .into_iter()
    .filter_map(|(candidate, slip)| (candidate != 1.0 && close(candidate)).then_some(slip))
    .collect();
    if slips.is_empty() { String::new() } else { format!(": {}", slips.join(", or ")) }
}
