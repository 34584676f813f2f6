//! ZP602: after the step a model's parameters are not their owner's master weights.

use std::collections::HashMap;

use super::super::Case;
use super::super::infinity::parts;
use super::{Rule, abridged, counted};
use crate::report::Finding;
use crate::spec::Dtype;
use crate::trace::{LayoutName, Point};

pub(super) const RULE: Rule = Rule {
    code: "ZP602",
    name: "stale-parameters",
    crash: false,
    explained_by: &["ZP401", "ZP501", "ZP502"],
    doc: include_str!("../../../docs/rules/ZP602.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Finding> {
    let observed = &case.observed;
    for step in 0..observed.spec.steps {
        let mut readers = Vec::new();
        let mut owners = Vec::new();
        let mut names = Vec::new();
        for parameters in
            observed.at(Point::Parameters, step).filter(|b| b.layout == LayoutName::Full)
        {
            let Ok(values) = parameters.payload.values() else { continue };
            let held: HashMap<usize, f64> = parts(observed, &case.plan, parameters)
                .into_iter()
                .flat_map(|part| part.flat.zip(part.start..))
                .map(|(element, place)| (element, values[place]))
                .collect();
            let sampled = case.placement.recorded_share(parameters.rank, LayoutName::Full) < 1.0;
            for master in observed.at(Point::MasterWeights, step) {
                let Ok(expected) = master.payload.values() else { continue };
                // A rank that updates an element itself answers to itself; what the others made of
                // it is for ZP601.
                let own = case.placement.partition(parameters.rank).unwrap_or_default();
                let is_own = |element: usize| {
                    parameters.rank != master.rank
                        && own.iter().any(|fragment| fragment.flat.contains(&element))
                };
                let wrong: Vec<usize> = parts(observed, &case.plan, master)
                    .into_iter()
                    .flat_map(|part| part.flat.zip(part.start..))
                    .map(|(element, place)| (element, expected[place]))
                    .filter(|(element, _)| !is_own(*element))
                    .filter(|(element, value)| {
                        let rounded = round(*value, parameters.payload.dtype);
                        held.get(element)
                            .map_or(!sampled, |held| held.to_bits() != rounded.to_bits())
                    })
                    .map(|(element, _)| element)
                    .collect();
                if wrong.is_empty() {
                    continue;
                }
                for (list, rank) in [(&mut readers, parameters.rank), (&mut owners, master.rank)] {
                    if !list.contains(&rank) {
                        list.push(rank);
                    }
                }
                for param in case.plan.params() {
                    let hit = wrong.iter().any(|element| param.range().contains(element));
                    if hit && !names.contains(&param.name) {
                        names.push(param.name.clone());
                    }
                }
            }
        }
        owners.sort_unstable();
        readers.sort_unstable();
        if owners.is_empty() {
            continue;
        }
        let mut finding = rule.finding(format!(
            "after step {step} the model on {} does not hold the weights that {} updated",
            counted("rank", &readers),
            counted("rank", &owners),
        ));
        finding.step = Some(step);
        finding.rank = match (&readers[..], &owners[..]) {
            // Stale on one rank only: that rank lost the update. One owner's partition stale
            // everywhere: that owner never handed it out.
            ([reader], _) => Some(*reader),
            (_, [owner]) => Some(*owner),
            _ => None,
        };
        if let [name] = names.as_slice() {
            finding.param = Some(name.clone());
        }
        finding.evidence.push(format!("parameters: {}", abridged(&names)));
        finding.evidence.push(
            "compared bit for bit with the master weights, rounded to the model's dtype".to_owned(),
        );
        return vec![finding];
    }
    Vec::new()
}

/// A master weight, which is an fp32 number, in the model's dtype.
fn round(value: f64, dtype: Dtype) -> f64 {
    // From fp32: `from_f64` drops the bits below its first 20 before it rounds, ties included.
    let value = value as f32;
    match dtype {
        Dtype::Bf16 => half::bf16::from_f32(value).to_f64(),
        Dtype::Fp16 => half::f16::from_f32(value).to_f64(),
        Dtype::Fp32 => f64::from(value),
    }
}
