//! ZP203: a block of the model runs in forward, but no backward of a step reaches it.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::trace::Block;
use zprobe_report::words::{abridged, counted};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP203"),
    name: "block-unreached",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP203.md"),
    check,
};

/// Returns the blocks that run in every step without being reached by a backward of any rank: those whose outputs the
/// script uses without a gradient, and those whose outputs nothing uses.
fn blocks<'a>(case: &Case<'a>) -> (Vec<&'a Block>, Vec<&'a Block>) {
    let script = &case.observed.script;
    // Paths start below a root, so that two models may have the same path.
    let mut seen: BTreeMap<(&str, &[usize]), Vec<&Block>> = BTreeMap::new();
    for block in script.unreached.values().copied().flatten() {
        seen.entry((&block.module, &block.params)).or_default().push(block);
    }
    // A block that some rank or some step uses is only used now and then.
    let steps: BTreeSet<usize> = script.ended.keys().map(|(step, _)| *step).collect();
    let all = steps.len() * case.observed.spec.world_size;
    let always = seen.into_values().filter(|blocks| blocks.len() >= all);
    // In the first step of each rank outputs are not watched.
    let is_unused = |blocks: &Vec<&Block>| {
        let unused = blocks.iter().filter(|block| block.unused).count();
        unused > 0 && unused + case.observed.spec.world_size >= blocks.len()
    };
    let (unused, cut): (Vec<_>, Vec<_>) = always.partition(is_unused);
    let first = |blocks: Vec<Vec<&'a Block>>| blocks.into_iter().map(|it| it[0]).collect();
    (first(cut), first(unused))
}

/// The name and the class of a block's module.
fn name(block: &&Block) -> String {
    match block.module.as_str() {
        "" => block.kind.clone(),
        module => format!("{module} ({})", block.kind),
    }
}

/// Remarks that blocks run although nothing uses their outputs, such as the pooler of an encoder whose tokens are
/// averaged.
pub fn unused(case: &Case<'_>) -> Option<String> {
    let names: Vec<String> = blocks(case).1.iter().map(name).collect();
    let (verb, it) =
        if names.len() == 1 { ("runs", "its outputs") } else { ("run", "their outputs") };
    (!names.is_empty()).then(|| {
        format!("{} {verb} in forward, but nothing uses {it}: not trained", abridged(&names))
    })
}

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let steps: BTreeSet<usize> = case.observed.script.ended.keys().map(|(step, _)| *step).collect();
    let (blocks, _) = blocks(case);
    let Some(first) = blocks.first() else { return Vec::new() };
    let names: Vec<String> = blocks.iter().map(name).collect();
    let params: BTreeSet<usize> =
        blocks.iter().flat_map(|block| block.params.iter().copied()).collect();
    let of =
        if params.is_empty() { first.params.clone() } else { params.iter().copied().collect() };
    let why = match &first.read {
        Some(place) => format!("forward reads parameters at {place} through .data or .detach()"),
        None => "the output is detached, or the loss does not use it".to_owned(),
    };
    let verbs = if names.len() == 1 {
        "runs in forward and is in the optimizer, but no backward reaches it"
    } else {
        "run in forward and are in the optimizer, but no backward reaches them"
    };
    let message = format!("{} {verbs}: {why}", abridged(&names));
    let param_names: Vec<String> =
        of.iter().map(|param| case.observed.model.param_name(*param)).collect();
    let finding = Finding {
        param: if let [only] = &param_names[..] { Some(only.clone()) } else { None },
        evidence: vec![
            format!("parameters without a gradient: {}", abridged(&param_names)),
            format!(
                "in {} on every rank",
                counted("step", &steps.iter().copied().collect::<Vec<_>>())
            ),
        ],
        ..rule.finding(message)
    };
    vec![Sighting::new(finding, Scope { params: params.into_iter().collect(), ..Scope::default() })]
}
