//! ZP604: the global norm that the engine computed is not the norm of the gradient.

use crate::case::Case;
use crate::observed::ReportedNorm;
use crate::overflow::{Decision, decision};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use crate::wording::POISON;
use zprobe_model::trace::Point;
use zprobe_report::words::{by_rank, counted, weight_text};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP604"),
    name: "gradient-norm-wrong",
    crash: false,
    is_handed_on: false,
    // A wrong gradient has another norm.
    explained_by: &RuleCode::all([
        "ZP101", "ZP102", "ZP103", "ZP104", "ZP105", "ZP106", "ZP107", "ZP201", "ZP401", "ZP402",
        "ZP501", "ZP502",
    ]),
    doc: include_str!("../../docs/ZP604.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let in_step = |step: usize| {
        let finding = match (differing(case, rule, step), wrong(case, rule, step)) {
            // Norms that differ between ranks are wrong on most of them.
            (Some(mut finding), Some(wrong)) => {
                finding.evidence.push(wrong.message);
                finding.evidence.extend(wrong.evidence);
                finding
            }
            (one, other) => one.or(other)?,
        };
        Some(Sighting::one_of(finding, Scope::step(step)))
    };
    case.observed.spec.recorded_steps().filter_map(in_step).collect()
}

/// Reports a norm that differs from the planned one.
fn wrong(case: &Case<'_>, rule: &Rule, step: usize) -> Option<Finding> {
    let observed = &case.observed;
    let right = case.norms.of(step)?;
    let mut finding: Option<Finding> = None;
    let mut ranks = Vec::new();
    for (rank, reported) in of_step(case, step) {
        let input = observed.buffers.of_rank(rank, Point::OptimizerInput, step).next();
        let dtype = input.map_or(observed.spec.dtype, |input| input.payload.dtype);
        // DeepSpeed computes the norm of the gradients before it copies them to a wider dtype.
        let narrow =
            if dtype.size() < observed.spec.dtype.size() { dtype } else { observed.spec.dtype };
        let bound = case.norms.tolerance(narrow) * right
            + case.decoded.smallest_element_deviation.unwrap_or(0.0) * case.norms.of_ones();
        let is_right = reported.norm.is_some_and(|norm| (norm - right).abs() <= bound);
        if is_right {
            continue;
        }
        ranks.push(rank);
        finding.get_or_insert_with(|| {
            let (value, factor) = match reported.norm {
                None => ("not finite".to_owned(), String::new()),
                Some(norm) => {
                    let factor = norm / right;
                    let factor = if right > 0.0 && factor > 0.0 {
                        format!(": off by a factor of {}", weight_text(factor))
                    } else {
                        String::new()
                    };
                    (weight_text(norm), factor)
                }
            };
            let mut finding = rule.finding(format!(
                "the engine computed {value} as the global norm of the gradient of step {step}, \
                 but the norm is {}{factor}",
                weight_text(right),
            ));
            if observed.is_poisoned() && reported.norm.is_none() {
                finding.evidence.push(POISON.to_owned());
            }
            finding.evidence.push(format!(
                "the sum of the squares of the planned input is {}; rounding may move \
                 its root by {bound:.1e}",
                (right * right).round(),
            ));
            if reported.limit > 0.0 {
                finding.evidence.push(format!(
                    "the gradient is clipped to {} by this norm",
                    weight_text(reported.limit)
                ));
            }
            finding
        });
    }
    if let Some(finding) = &mut finding {
        finding.evidence.push(format!("seen on {}", counted("rank", &ranks)));
        if let ([rank], 2..) = (&ranks[..], observed.spec.world_size) {
            finding.rank = Some(*rank);
        }
    }
    finding
}

/// Reports norms of the same gradient that differ between ranks, so that ranks clip the gradient differently.
fn differing(case: &Case<'_>, rule: &Rule, step: usize) -> Option<Finding> {
    let norms: Vec<(usize, Option<f64>)> =
        of_step(case, step).map(|(rank, reported)| (rank, reported.norm)).collect();
    let (_, first) = *norms.first()?;
    if norms.iter().all(|(_, norm)| norm.map(f64::to_bits) == first.map(f64::to_bits)) {
        return None;
    }
    let mut finding =
        rule.finding(format!("the ranks computed different norms of the gradient of step {step}"));
    finding.evidence = by_rank(norms.iter().map(|&(rank, norm)| {
        (rank, norm.map_or("not finite".to_owned(), |norm| norm.to_string()))
    }));
    Some(finding)
}

/// Iterates over the norms that ranks reported in a step.
fn of_step<'a>(case: &'a Case<'_>, step: usize) -> impl Iterator<Item = (usize, &'a ReportedNorm)> {
    let norms = case.observed.updates.norms.range((step, 0)..=(step, usize::MAX));
    let taken = move |rank: &usize| {
        decision(&case.observed, &case.plan, step, *rank) != Some(Decision::Skipped)
    };
    norms.map(|(&(_, rank), reported)| (rank, reported)).filter(move |(rank, _)| taken(rank))
}
