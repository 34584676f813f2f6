//! ZP113: microbatches or ranks that weigh so many times as much as the others.

use super::super::Case;
use super::super::causes::Sighting;
use super::super::loss::law::{self, Law, Odd};
use super::super::loss::{Term, by_step};
use super::super::scope::{Extent, Scope};
use super::Rule;
use crate::report::RuleCode;
use crate::report::words::weight_text;
use crate::spec::Weighting;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP113"),
    name: "share-differs",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../../docs/rules/ZP113.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let spec = case.observed.spec;
    let demands_nothing = spec.script().is_some_and(|script| {
        script.weighting == Weighting::Any && script.scale == crate::spec::Scale::Any
    });
    if spec.script().is_none() || demands_nothing {
        return Vec::new();
    }
    let recorded: Vec<usize> = spec.recorded_steps().collect();
    let steps = by_step(case);
    let of_step = |(step, terms): (&usize, &Vec<Term<'_>>)| {
        let is_recorded = recorded.contains(step);
        let term = terms.iter().filter(|_| is_recorded).find_map(|term| {
            let weights = law::read(spec, term)?;
            if let Law::But(odd, times) = weights.law { Some((term, odd, times)) } else { None }
        });
        term.map(|(term, odd, times)| sighting(case, rule, term, &odd, times))
    };
    // Microbatches that are odd by chance are not so in every step.
    let found: Vec<Option<Sighting>> =
        steps.iter().filter(|(step, _)| recorded.contains(step)).map(of_step).collect();
    found.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default()
}

fn sighting(case: &Case<'_>, rule: &Rule, term: &Term<'_>, odd: &Odd, times: f64) -> Sighting {
    let message = format!(
        "{} of the loss weighs {} times as much as the others",
        odd.describe(),
        weight_text(times),
    );
    let mut finding = rule.finding(message);
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
    finding.evidence.extend(super::places(term));
    let scope = Scope { steps: [term.step].into_iter().collect(), gradients, ..Scope::default() };
    Sighting::one_of(finding, scope)
}
