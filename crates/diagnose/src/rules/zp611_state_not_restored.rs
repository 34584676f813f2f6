//! ZP611: the training state differs after a checkpoint was loaded.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::trace::StateCompared;
use zprobe_report::words::{abridged, counted};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP611"),
    name: "state-not-restored",
    crash: false,
    is_handed_on: true,
    explained_by: &[],
    doc: include_str!("../../docs/ZP611.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let mut of_step: BTreeMap<usize, Lost<'_>> = BTreeMap::new();
    for ((step, rank), states) in &case.observed.updates.loaded {
        for it in states.iter().filter(|it| it.differs()) {
            of_step.entry(*step).or_default().entry(&it.state).or_default().push((*rank, it));
        }
    }
    of_step.into_iter().map(|(step, lost)| sighting(case, rule, step, &lost)).collect()
}

/// The ranks on which each kind of state differs, with the comparison of each rank.
type Lost<'a> = BTreeMap<&'a str, Vec<(usize, &'a StateCompared)>>;

fn sighting(case: &Case<'_>, rule: &Rule, step: usize, lost: &Lost<'_>) -> Sighting {
    let ranks: BTreeSet<usize> = lost.values().flatten().map(|(rank, _)| *rank).collect();
    let dtype = case.observed.spec.dtype;
    let kinds = lost.iter().map(|(kind, of)| {
        let is_rounded = of.iter().all(|(_, it)| it.rounded);
        if is_rounded { format!("{kind} (rounded to {dtype})") } else { (*kind).to_owned() }
    });
    let named: Vec<usize> = ranks.iter().copied().collect();
    let message = format!(
        "the checkpoint before step {step} did not restore the training state on {}: {}",
        counted("rank", &named),
        kinds.collect::<Vec<_>>().join(", "),
    );
    let evidence = lost.iter().map(|(kind, of)| format!("{kind} on {}", places(case, of)));
    let finding =
        Finding { step: Some(step), evidence: evidence.collect(), ..rule.finding(message) };
    let params = lost.values().flatten().flat_map(|(_, it)| &it.differing).map(|it| it.param);
    // A number of the whole engine concerns all parameters.
    let is_of_engine = lost.values().flatten().any(|(_, it)| it.differing.is_empty());
    let params = if is_of_engine { Extent::All } else { params.collect() };
    let holders = Extent::of(ranks, case.observed.spec.world_size);
    Sighting::new(finding, Scope { params, holders, ..Scope::step(step) })
}

/// Describes the ranks and parameters in which one kind of state differs, and the first differing number.
fn places(case: &Case<'_>, of: &[(usize, &StateCompared)]) -> String {
    let ranks: Vec<usize> = of.iter().map(|(rank, _)| *rank).collect();
    let params: BTreeSet<usize> =
        of.iter().flat_map(|(_, it)| &it.differing).map(|it| it.param).collect();
    let names: Vec<String> =
        params.iter().map(|param| case.observed.model.param_name(*param)).collect();
    let names = if names.is_empty() { String::new() } else { format!(", in {}", abridged(&names)) };
    let number = |it: Option<f64>| it.map_or("no finite number".to_owned(), |it| it.to_string());
    let first = of
        .iter()
        .find_map(|(_, it)| it.numbers)
        .map(|it| format!(": saved {}, loaded {}", number(it.saved), number(it.loaded)));
    format!("{}{names}{}", counted("rank", &ranks), first.unwrap_or_default())
}
