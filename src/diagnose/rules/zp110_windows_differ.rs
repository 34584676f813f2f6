//! ZP110: the optimizer steps after other microbatches than it should, or a trainer accumulates over another
//! number of them than the optimizer steps after.

use super::super::Case;
use super::super::causes::Sighting;
use super::super::scope::{Extent, Scope};
use super::{Rule, by_rank, counted};
use crate::report::words::amount;
use crate::report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP110"),
    name: "windows-differ",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP110.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.script().is_some() {
        of_script(case, rule)
    } else {
        of_engine(case, rule).into_iter().collect()
    }
}

/// The steps that an engine took elsewhere than at the gradient accumulation boundary.
fn of_engine(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let observed = &case.observed;
    let ga = observed.spec.gradient_accumulation_steps;
    let is_wrong = |step: usize, rank: usize, called: &[usize]| {
        let took_none = called.is_empty();
        called != [ga - 1]
            && !observed.skipped(step, rank)
            && !observed.failed_in(step, rank)
            && (!took_none || case.placement.is_due(&case.plan, step, rank, ga))
    };
    let all = observed.called.iter();
    let wrong: Vec<(usize, usize, &[usize])> = all
        .map(|(&(step, rank), called)| (step, rank, *called))
        .filter(|&(step, rank, called)| is_wrong(step, rank, called))
        .collect();
    let &(step, _, first) = wrong.first()?;
    let boundary = ga - 1;
    let mut finding = rule.finding(if first.is_empty() {
        format!(
            "the optimizer took no step after microbatch {boundary}, the boundary of step {step}"
        )
    } else {
        format!(
            "the optimizer stepped after {} of step {step}; its boundary is microbatch {boundary}",
            counted("microbatch", first),
        )
    });
    let of_step = wrong.iter().filter(|it| it.0 == step);
    let words = |called: &[usize]| match called {
        [] => "no step".to_owned(),
        called => format!("a step after {}", counted("microbatch", called)),
    };
    finding.evidence.extend(by_rank(of_step.map(|&(_, rank, called)| (rank, words(called)))));
    let steps = wrong.iter().map(|it| it.0).collect();
    let holders = Extent::of(wrong.iter().map(|it| it.1), observed.spec.world_size);
    Some(Sighting::new(finding, Scope { steps, holders, ..Scope::default() }))
}

/// The trainers of a script that are set to another number of microbatches than optimizers stepped after.
fn of_script(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let taken = observed.spec.gradient_accumulation_steps;
    let of_all = observed.remarks.iter().flat_map(|(rank, it)| {
        it.accumulation.iter().map(move |(trainer, set)| (*rank, trainer, *set))
    });
    // One that is set to 1 leaves the accumulation to somebody else.
    let Some((_, trainer, set)) = of_all.clone().find(|(_, _, set)| *set > 1 && *set != taken)
    else {
        return Vec::new();
    };
    let message = format!(
        "{trainer} is set to accumulate over {}, and optimizers stepped after {taken}",
        amount(set, "microbatch"),
    );
    let evidence =
        of_all.map(|(rank, trainer, set)| format!("rank {rank}: {trainer} is set to {set}"));
    let finding = Finding { evidence: evidence.collect(), ..rule.finding(message) };
    vec![Sighting::new(finding, Scope::default())]
}
