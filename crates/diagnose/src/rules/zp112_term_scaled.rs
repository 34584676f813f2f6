//! ZP112: the weights of one term of the loss do not sum to 1, the sum of a mean, while other terms are right.

use std::collections::{BTreeMap, BTreeSet};

use super::zp111_loss_scaled::{own_factor, remedy};
use crate::case::Case;
use crate::loss::constants::lacks;
use crate::loss::contract;
use crate::loss::scale::{SumVerdict, judge_all};
use crate::loss::slip::TermSlip;
use crate::loss::{StepTerm, by_step};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::RuleCode;
use zprobe_report::words::multiple_text;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP112"),
    name: "term-scaled",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP113"]),
    doc: include_str!("../../docs/ZP112.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    if case.observed.spec.script().is_none() {
        return Vec::new();
    }
    let recorded: Vec<usize> = case.observed.spec.recorded_steps().collect();
    let steps = by_step(case);
    let all: Vec<&Vec<StepTerm<'_>>> = steps.values().collect();
    let steps: Vec<&Vec<StepTerm<'_>>> =
        steps.iter().filter(|(step, _)| recorded.contains(step)).map(|(_, terms)| terms).collect();
    if let Some(sighting) = repeated(case, rule, &steps) {
        return vec![sighting];
    }
    let mut of_term: BTreeMap<usize, Vec<SumVerdict>> = BTreeMap::new();
    for terms in &steps {
        for (term, sum) in terms.iter().zip(judge_all(case, terms)) {
            of_term.entry(term.number).or_default().push(sum);
        }
    }
    let slip = |sums: &Vec<SumVerdict>| -> Option<(f64, TermSlip)> {
        let SumVerdict::Off(value, slip) = sums.first()? else { return None };
        let is_same = |sum: &SumVerdict| matches!(sum, SumVerdict::Off(_, other) if other == slip);
        sums.iter().all(is_same).then_some((*value, *slip))
    };
    let is_other = |sums: &Vec<SumVerdict>, slip: TermSlip| {
        sums.iter().all(|sum| match sum {
            SumVerdict::Off(_, other) => *other != slip,
            sum => sum.is_right(),
        })
    };
    let Some(terms) = steps.first() else { return Vec::new() };
    let found = of_term.iter().filter_map(|(number, sums)| {
        let (value, slip) = slip(sums)?;
        let others = of_term.iter().filter(|(other, _)| *other != number);
        let term = terms.iter().find(|term| term.number == *number)?;
        // A condition on the data leaves out other microbatches in each step.
        if slip == TermSlip::InSome && !is_in_the_same(term, &all) {
            return None;
        }
        let is_alone = others.clone().any(|(_, sums)| is_other(sums, slip));
        let are_right = others.clone().all(|(_, sums)| sums.iter().all(SumVerdict::is_right));
        (is_alone || lacks(case, term, slip))
            .then(|| sighting(case, rule, terms, (term, are_right), value, slip))
    });
    found.collect()
}

/// True if the same microbatches of the same ranks have a term in all of these steps.
fn is_in_the_same(term: &StepTerm<'_>, steps: &[&Vec<StepTerm<'_>>]) -> bool {
    let having = |term: &StepTerm<'_>| -> BTreeSet<(usize, usize)> {
        term.rows.iter().map(|row| (row.rank, row.loss.microbatch)).collect()
    };
    let of_steps = steps.iter().flat_map(|terms| terms.iter());
    let mut same = of_steps.filter(|it| (it.of(), it.name()) == (term.of(), term.name()));
    same.all(|it| having(it) == having(term))
}

fn sighting(
    case: &Case<'_>,
    rule: &Rule,
    terms: &[StepTerm<'_>],
    (term, others_are_right): (&StepTerm<'_>, bool),
    value: f64,
    slip: TermSlip,
) -> Sighting {
    let message = format!(
        "the term {}{} of the loss has {} times the weight of a mean: {}{}",
        term.name(),
        term.place().map_or_else(String::new, |place| format!(" ({place})")),
        multiple_text(value),
        slip.describe(term.taken, case.observed.replicas()),
        if others_are_right { "; the other terms are right" } else { "" },
    );
    let mut finding = rule.finding(message);
    finding.evidence.extend(contract::describe(case, terms));
    finding.evidence.extend(term.backward_lines());
    finding.evidence.extend(remedy(case, term, slip));
    finding.evidence.extend(own_factor(term, value));
    Sighting::new(finding, Scope::step(term.step))
}

/// Reports a term that the loss contains more than once in each microbatch.
fn repeated(case: &Case<'_>, rule: &Rule, steps: &[&Vec<StepTerm<'_>>]) -> Option<Sighting> {
    let is_repeated = |term: &StepTerm<'_>| term.rows.iter().all(|row| row.term.times > 1);
    let terms = steps.first()?;
    let term = terms.iter().find(|term| is_repeated(term))?;
    let message = format!(
        "the loss contains the term {} {} times: the term was added to a sum that already contains it",
        term.name(),
        term.rows.first()?.term.times,
    );
    let mut finding = rule.finding(message);
    finding.evidence.extend(contract::describe(case, terms));
    finding.evidence.extend(term.backward_lines());
    Some(Sighting::new(finding, Scope::step(term.step)))
}
