//! ZP610: updates are lost by rounding to half precision.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::trace::UpdatesRounded;
use zprobe_report::words::by_rank;
use zprobe_report::{Finding, RuleCode};

/// The share of unchanged elements from which on a step is a finding: at least half of the update is lost.
const MOST: f64 = 0.5;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP610"),
    name: "update-swallowed",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP102", "ZP605", "ZP606"]),
    doc: include_str!("../../docs/ZP610.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let mut of: BTreeMap<(usize, usize), Vec<&UpdatesRounded>> = BTreeMap::new();
    for (&(_, rank), compared) in &case.observed.updates.rounded {
        for it in compared {
            of.entry((it.optimizer, rank)).or_default().push(it);
        }
    }
    // A step whose averages still hold earlier gradients changes fewer elements than others.
    let is_lost = |compared: &[&UpdatesRounded]| compared.iter().all(|it| it.share >= MOST);
    of.retain(|_, compared| is_lost(compared));
    let Some((&(optimizer, _), first)) = of.first_key_value() else { return Vec::new() };
    let Some(least) = first.iter().min_by(|a, b| a.share.total_cmp(&b.share)) else {
        return Vec::new();
    };
    let dtypes: Vec<String> = least.dtypes.iter().map(ToString::to_string).collect();
    let dtypes = dtypes.join(" and ");
    let share = percent(least.share);
    let message = format!(
        "rounding to {dtypes} swallows the update{}: {share} of the elements that have a gradient have the same \
         value after the step as before, and the optimizer keeps no copy of them in fp32",
        rates(case, optimizer),
    );
    let told = of.iter().filter(|((it, _), _)| *it == optimizer).map(|((_, rank), compared)| {
        let steps = compared.iter().map(|it| format!("{} in step {}", percent(it.share), it.step));
        (*rank, format!("the same: {}", steps.collect::<Vec<_>>().join(", ")))
    });
    let finding = Finding { evidence: by_rank(told), ..rule.finding(message) };
    vec![Sighting::new(finding, Scope::default())]
}

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// Describes the learning rates of an optimizer; empty if none was seen.
fn rates(case: &Case<'_>, optimizer: usize) -> String {
    let steps = case.observed.updates.stepped.values().flatten();
    let groups = steps.filter(|it| it.optimizer == optimizer).flat_map(|it| &it.groups);
    let mut rates: Vec<f64> = groups.filter_map(|it| it.get("lr")).flatten().copied().collect();
    rates.sort_by(f64::total_cmp);
    match (rates.first(), rates.last()) {
        (Some(least), Some(most)) if least == most => format!(" of learning rate {most}"),
        (Some(least), Some(most)) => format!(" of learning rates {least} to {most}"),
        _ => String::new(),
    }
}
