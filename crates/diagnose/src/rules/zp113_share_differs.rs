//! ZP113: some microbatches or ranks weigh a multiple of the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::Case;
use crate::loss::law::{self, ElementWeights, Law, Odd};
use crate::loss::{StepTerm, by_step};
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::spec::Weighting;
use zprobe_model::trace::LossWeighed;
use zprobe_report::RuleCode;
use zprobe_report::words::{abridged, counted, weight_text};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP113"),
    name: "share-differs",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP110"]),
    doc: include_str!("../../docs/ZP113.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let spec = case.observed.spec;
    let demands_nothing = spec.script().is_some_and(|script| {
        script.weighting == Weighting::Any && script.scale == zprobe_model::spec::Scale::Any
    });
    if spec.script().is_none() || demands_nothing {
        return Vec::new();
    }
    if let Some(found) = gone_again(case, rule).or_else(|| zeroed(case, rule)) {
        return vec![found];
    }
    let recorded: Vec<usize> = spec.recorded_steps().collect();
    let steps = by_step(case);
    let of_step = |(step, terms): (&usize, &Vec<StepTerm<'_>>)| {
        let is_recorded = recorded.contains(step);
        terms.iter().filter(|_| is_recorded).find_map(|term| match law::read(spec, term)?.law {
            Law::But(odd, times) => Some(sighting(case, rule, term, &odd, times)),
            Law::Graded(times) => Some(graded(rule, term, &times)),
            _ => None,
        })
    };
    // Microbatches that are odd by chance are not odd in every step.
    let found: Vec<Option<Sighting>> =
        steps.iter().filter(|(step, _)| recorded.contains(step)).map(of_step).collect();
    match found.into_iter().collect::<Option<Vec<_>>>() {
        Some(found) if !found.is_empty() => found,
        _ => in_one_step(case, rule, &steps).into_iter().collect(),
    }
}

/// Reports a step in which some microbatches are odd, while the same term follows one law in all other steps,
/// including the first one.
fn in_one_step(
    case: &Case<'_>,
    rule: &Rule,
    steps: &BTreeMap<usize, Vec<StepTerm<'_>>>,
) -> Option<Sighting> {
    let spec = case.observed.spec;
    let terms: Vec<(&StepTerm<'_>, ElementWeights)> =
        steps.values().flatten().filter_map(|it| Some((it, law::read(spec, it)?))).collect();
    let is_recorded = |term: &StepTerm<'_>| spec.recorded_steps().any(|step| step == term.step);
    let mut odd = terms.iter().filter_map(|(term, weights)| match &weights.law {
        Law::But(odd, times) if is_recorded(term) && term.is_divided_alone() => {
            Some((*term, odd, *times))
        }
        _ => None,
    });
    let (term, odd, times) = odd.next()?;
    let same = |it: &StepTerm<'_>| (it.number, it.name()) == (term.number, term.name());
    let others = terms.iter().filter(|(it, _)| it.step != term.step && same(it));
    let units: Vec<_> = others.map(|(it, weights)| weights.unit(it.noun())).collect();
    let unit = (*units.first()?)?;
    let is_the_law = units.len() > 1 && units.iter().all(|it| *it == Some(unit));
    is_the_law.then(|| {
        let mut found = sighting(case, rule, term, odd, times);
        let message = &mut found.finding.message;
        *message = format!(
            "in step {} {message}; in the other steps every {unit} weighs the same",
            term.step
        );
        found.finding.step = Some(term.step);
        found
    })
}

/// Reports microbatches whose loss the script multiplies by 0, if they are the same in each step. The last microbatches of
/// some ranks may be dummies, which ranks with less data run while other ranks have more.
fn zeroed(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let recorded: Vec<usize> = case.observed.spec.recorded_steps().collect();
    let losses = &case.observed.script.losses;
    let of_step = |step: usize| -> BTreeSet<(usize, usize)> {
        let of_step = losses.iter().filter(|((at, _), _)| *at == step);
        let zeroed = of_step.flat_map(|((_, rank), of)| of.iter().map(move |it| (*rank, *it)));
        let zeroed: BTreeSet<(usize, usize)> =
            zeroed.filter(|(_, it)| it.zeroed).map(|(rank, it)| (rank, it.microbatch)).collect();
        let has = |rank: usize, microbatch: usize| zeroed.contains(&(rank, microbatch));
        let is_dummy = |(rank, microbatch): &(usize, usize)| {
            let of_rank = losses.get(&(step, *rank)).into_iter().flatten();
            let mut after = of_rank.clone().filter(|it| it.microbatch > *microbatch);
            after.all(|it| it.zeroed)
                && of_rank.into_iter().any(|it| !it.zeroed)
                && (0..case.observed.spec.world_size).any(|other| !has(other, *microbatch))
        };
        zeroed.iter().filter(|it| !is_dummy(it)).copied().collect()
    };
    let steps: Vec<BTreeSet<(usize, usize)>> = recorded.iter().map(|step| of_step(*step)).collect();
    let first = steps.first().filter(|it| !it.is_empty())?;
    let is_in_all = recorded.len() > 1 && steps.iter().all(|it| it == first);
    let microbatches: BTreeSet<usize> = first.iter().map(|(_, microbatch)| *microbatch).collect();
    let microbatches: Vec<usize> = microbatches.into_iter().collect();
    let lines = losses.values().flatten().filter(|it| it.zeroed).filter_map(|it| it.at.clone());
    let lines: BTreeSet<String> = lines.collect();
    is_in_all.then(|| {
        let message = format!(
            "the loss of {} is multiplied by 0 in each step: its gradients never reach the optimizer",
            counted("microbatch", &microbatches),
        );
        let mut finding = rule.finding(message);
        finding.evidence.extend(lines.iter().map(|line| format!("backward at {line}")));
        Sighting::one_of(
            finding,
            Scope { gradients: first.iter().copied().collect(), ..Scope::default() },
        )
    })
}

/// Reports microbatches whose loss goes backward again with the loss of later ones, as in a running sum.
fn gone_again(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let observed = &case.observed;
    let is_aside =
        |step, rank, microbatch| observed.script.set_aside.contains_key(&(step, rank, microbatch));
    let goes_again = |(step, rank): (usize, usize), loss: &LossWeighed| {
        loss.again.iter().any(|it| !is_aside(step, rank, *it))
    };
    // Gradients that are cleared on purpose are only recognised from the second step on.
    let mut losses = observed.script.losses.iter().filter(|((step, _), _)| *step > 0);
    let (&(step, rank), of_rank) = losses.find(|(at, of)| {
        let is_of_one_turn = of.iter().all(|it| it.turn == 0);
        is_of_one_turn && of.iter().any(|loss| goes_again(**at, loss))
    })?;
    let times = |microbatch: usize| {
        let is_kept = !is_aside(step, rank, microbatch);
        usize::from(is_kept) + of_rank.iter().filter(|it| it.again.contains(&microbatch)).count()
    };
    let all: BTreeSet<usize> = of_rank.iter().map(|it| it.microbatch).collect();
    let again: Vec<usize> = all.iter().copied().filter(|it| times(*it) > 1).collect();
    let counts: Vec<String> = all.iter().map(|it| times(*it).to_string()).collect();
    let message = format!(
        "the loss of {} is part of the loss of later microbatches too, as in a running sum: microbatches weigh {}",
        counted("microbatch", &again),
        counts.join(", "),
    );
    let mut finding = rule.finding(message);
    let last = of_rank.iter().find(|it| !it.again.is_empty())?;
    finding.evidence.extend(last.at.iter().map(|at| format!("backward at {at}")));
    finding.evidence.push(format!("seen first in step {step} on rank {rank}"));
    Some(Sighting::one_of(finding, Scope::default()))
}

/// Reports microbatches that each weigh a different multiple of the first.
fn graded(rule: &Rule, term: &StepTerm<'_>, times: &[f64]) -> Sighting {
    let times: Vec<String> = times.iter().copied().map(weight_text).collect();
    let mut finding = rule.finding(format!(
        "the microbatches of a step have {} times the weight of the first, on every rank",
        abridged(&times),
    ));
    finding.evidence.extend(term.backward_lines());
    let scope = Scope { steps: [term.step].into_iter().collect(), ..Scope::default() };
    Sighting::one_of(finding, scope)
}

fn sighting(case: &Case<'_>, rule: &Rule, term: &StepTerm<'_>, odd: &Odd, times: f64) -> Sighting {
    let mut finding = rule.finding(odd.weighs(times));
    let ranks = 0..case.observed.spec.world_size;
    let steps = 0..case.observed.spec.gradient_accumulation_steps;
    let gradients: Extent<(usize, usize)> = match odd {
        Odd::Microbatches(which) => {
            ranks.flat_map(|rank| which.iter().map(move |it| (rank, *it))).collect()
        }
        Odd::Ranks(which) => {
            which.iter().flat_map(|rank| steps.clone().map(move |it| (*rank, it))).collect()
        }
        Odd::One(rank, microbatch) => [(*rank, *microbatch)].into_iter().collect(),
    };
    match odd {
        Odd::Ranks(which) if which.len() == 1 => finding.rank = which.first().copied(),
        Odd::One(rank, _) => finding.rank = Some(*rank),
        _ => {}
    }
    finding.evidence.extend(term.backward_lines());
    let scope = Scope { steps: [term.step].into_iter().collect(), gradients, ..Scope::default() };
    Sighting::one_of(finding, scope)
}
