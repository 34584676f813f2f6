//! ZP110: the optimizer steps after other microbatches than it should, or a trainer is set to accumulate over a
//! different number of microbatches than the optimizer steps after.

use crate::case::Case;
use crate::deviation::{Deviation, Pattern};
use crate::loss::{MicrobatchTerm, by_step};
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::trace::{ConstantKind, LossConstant, TermOf};
use zprobe_report::words::{amount, by_rank, counted};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP110"),
    name: "windows-differ",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP110.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.script().is_some() {
        let windows = of_script(case, rule);
        if windows.is_empty() {
            of_constants(case, rule).or_else(|| within_window(case, rule)).into_iter().collect()
        } else {
            windows
        }
    } else {
        of_engine(case, rule).into_iter().collect()
    }
}

/// Reports an engine that stepped elsewhere than at the gradient accumulation boundary.
fn of_engine(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let observed = &case.observed;
    let ga = observed.spec.gradient_accumulation_steps;
    let is_wrong = |step: usize, rank: usize, called: &[usize]| {
        let took_none = called.is_empty();
        called != [ga - 1]
            && !observed.updates.skipped(step, rank)
            && !observed.failed_in(step, rank)
            && (!took_none || case.placement.is_due(&case.plan, step, rank, ga))
    };
    let all = observed.updates.called.iter();
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
            "the optimizer stepped after {} of step {step}; the boundary of the step is microbatch {boundary}",
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

/// Reports trainers of a script that are set to a different number of microbatches than optimizers stepped after.
fn of_script(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let observed = &case.observed;
    let taken = observed.spec.gradient_accumulation_steps;
    let of_all = observed.script.remarks.iter().flat_map(|(rank, it)| {
        it.accumulation.iter().map(move |(trainer, set)| (*rank, trainer, *set))
    });
    // A trainer that is set to 1 leaves the accumulation to other code.
    let short = |set: usize| short_windows(case, set);
    // Several losses of a microbatch may go backward, each from its own line.
    let lines = observed.script.remarks.values().map(|it| it.backward_at.len()).max().unwrap_or(1);
    let is_window = |set: usize| taken == set || taken == set * lines;
    let is_wrong = |set: usize| set > 1 && (!is_window(set) || short(set).is_some());
    let Some((_, trainer, set)) = of_all.clone().find(|(_, _, set)| is_wrong(*set)) else {
        return Vec::new();
    };
    let message = format!(
        "{trainer} is set to accumulate over {}, but optimizers stepped after ",
        amount(set, "microbatch")
    );
    let message = match short(set).filter(|_| set == taken) {
        Some((step, taken)) => format!("{message}{taken} in steps {step} and {}", step + 1),
        None => format!("{message}{taken}"),
    };
    let evidence =
        of_all.map(|(rank, trainer, set)| format!("rank {rank}: {trainer} is set to {set}"));
    let finding = Finding { evidence: evidence.collect(), ..rule.finding(message) };
    vec![Sighting::new(finding, Scope::default())]
}

/// Reports a script that multiplies its loss by its own number of microbatches, while a trainer divides by another
/// number.
fn of_constants(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let steps = by_step(case);
    let ranks = case.observed.replicas() as f64;
    let row = steps
        .values()
        .flatten()
        .flat_map(|term| &term.rows)
        .find(|row| row.term.of == TermOf::Tokens)?;
    let constants = &row.term.constants;
    let taken = case.observed.spec.gradient_accumulation_steps;
    let mut set = case.observed.script.remarks.values().flat_map(|it| &it.accumulation);
    let (trainer, _) = set.find(|(_, set)| **set == taken)?;
    let taken = taken as f64;
    let is_other = |it: &&LossConstant| {
        let is_count = it.kind == ConstantKind::Int && it.counted && !it.written && it.by.is_none();
        is_count
            && !it.divides
            && it.factor > 1.0
            && ![ranks, taken, ranks * taken].contains(&it.factor)
    };
    let own = constants.iter().find(is_other)?;
    let message = format!(
        "{} accumulates over {}, but the script multiplies its loss by another number of microbatches, {}",
        trainer,
        amount(case.observed.spec.gradient_accumulation_steps, "microbatch"),
        own.factor,
    );
    let evidence = own.at.iter().map(|at| format!("the multiplication is at {at}")).collect();
    let finding = Finding { evidence, ..rule.finding(message) };
    Some(Sighting::new(finding, Scope::default()))
}

/// Reports a script whose optimizers step after each microbatch, while its loss is divided by a number of microbatches:
/// then the gradients of the microbatches before come again, or are not averaged yet.
fn within_window(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let is_sign = |it: &&Deviation| matches!(it.pattern, Pattern::Leftover | Pattern::NotAveraged);
    if case.observed.spec.gradient_accumulation_steps != 1
        || !case.deviations.iter().any(|it| is_sign(&it))
    {
        return None;
    }
    let ranks = case.observed.replicas() as f64;
    let is_window = |it: &&LossConstant| {
        let is_count = it.kind == ConstantKind::Int && !it.written && it.by.is_none();
        it.divides && is_count && it.factor > 1.0 && it.factor != ranks
    };
    let steps = by_step(case);
    let mut rows = steps.values().flatten().flat_map(|term| &term.rows);
    let constants = &rows.next()?.term.constants;
    let window = constants.iter().find(is_window)?;
    let is_divided = |it: &MicrobatchTerm<'_>| {
        let mut counts = it.term.constants.iter().filter(is_window);
        counts.any(|other| (other.factor, &other.at) == (window.factor, &window.at))
    };
    if !rows.all(is_divided) {
        return None;
    }
    let message = format!(
        "optimizers stepped after each microbatch, but the loss is divided by {}: the step may be inside of the loop \
         over the microbatches",
        window.factor,
    );
    let evidence = window.at.iter().map(|at| format!("the division is at {at}")).collect();
    let finding = Finding { evidence, ..rule.finding(message) };
    Some(Sighting::new(finding, Scope::default()))
}

/// Returns the first of two consecutive steps that both have fewer microbatches than `set`, with its number of
/// microbatches. A single short window may be the last one of an epoch.
fn short_windows(case: &Case<'_>, set: usize) -> Option<(usize, usize)> {
    let ended = &case.observed.script.ended;
    let is_short =
        |step: usize, rank: usize| ended.get(&(step, rank)).is_some_and(|taken| *taken < set);
    let (&(step, _), taken) = ended
        .iter()
        .find(|&(&(step, rank), _)| is_short(step, rank) && is_short(step + 1, rank))?;
    Some((step, *taken))
}
