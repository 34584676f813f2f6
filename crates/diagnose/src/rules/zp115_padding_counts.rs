//! ZP115: padding counts as a target, or one term of the loss lacks the mask of another.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::loss::scale::{SumVerdict, judge_all};
use crate::loss::{StepTerm, by_step, contract};
use crate::rule::{Rule, Sighting};
use crate::scope::{Extent, Scope};
use zprobe_model::spec::Weighting;
use zprobe_model::trace::Filler;
use zprobe_report::words::{amount, by_rank, multiple_text, of_all};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP115"),
    name: "padding-counts",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP115.md"),
    check,
};

/// The smallest number of rows of a batch that must end in the same token.
const ROWS: usize = 3;

/// The largest share of a padding token's targets that may lie elsewhere than at the ends of rows.
const ELSEWHERE: f64 = 0.1;

/// The largest share of pairs of other tokens that repeat the same token. Sorted rows and images have runs of any
/// token.
const REPEATED: f64 = 0.2;

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let script = case.observed.spec.script();
    if script.is_none_or(|script| script.weighting != Weighting::Any) {
        return Vec::new();
    }
    let found = as_target(case, rule).or_else(|| behind_a_mask(case, rule));
    found.into_iter().collect()
}

/// Reports a token that is padding and also a target.
fn as_target(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let mut fillers: BTreeMap<i64, Vec<FillerSeen<'_>>> = BTreeMap::new();
    for (&(step, rank), losses) in &case.observed.script.losses {
        let terms = losses.iter().flat_map(|loss| loss.terms.iter().map(move |term| (loss, term)));
        for (loss, term) in terms {
            let seen = |filler| FillerSeen {
                rank,
                at: loss.at.as_deref(),
                targets: term.elements,
                filler,
            };
            let filler = term.filler.iter().filter(|_| step == 0);
            filler.for_each(|it| fillers.entry(it.token).or_default().push(seen(it)));
        }
    }
    let found = fillers.iter().find(|(_, seen)| is_padding(seen));
    found.map(|(token, seen)| sighting(case, rule, *token, seen))
}

/// Reports a term that lacks the mask of another term in each recorded step.
fn behind_a_mask(case: &Case<'_>, rule: &Rule) -> Option<Sighting> {
    let mut steps = by_step(case);
    steps.retain(|step, _| case.observed.spec.recorded_steps().any(|it| it == *step));
    let sum_of =
        |terms: &[StepTerm<'_>], number: usize| judge_all(case, terms).get(number).cloned();
    let is_unmasked = |number: usize| {
        let mut sums = steps.values().map(|terms| sum_of(terms, number));
        sums.all(|sum| matches!(sum, Some(SumVerdict::Unmasked(_))))
    };
    let terms = steps.values().next()?;
    let term = terms.iter().find(|term| is_unmasked(term.number))?;
    let Some(SumVerdict::Unmasked(value)) = sum_of(terms, term.number) else { return None };
    let message = format!(
        "the term {} of the loss has no mask: it is summed over all positions, but divided by the number of \
         positions that another term's mask keeps; it has {} times the weight of a mean",
        term.name(),
        multiple_text(value),
    );
    let mut finding = rule.finding(message);
    finding.evidence.extend(contract::describe(case, terms));
    finding.evidence.extend(term.backward_lines());
    Some(Sighting::new(finding, Scope::step(term.step)))
}

/// A token that fills the ends of rows of a microbatch.
struct FillerSeen<'a> {
    rank: usize,
    at: Option<&'a str>,
    targets: usize,
    filler: &'a Filler,
}

/// True if a token is padding: it fills the ends of rows of different lengths, and occurs hardly anywhere else.
fn is_padding(seen: &[FillerSeen<'_>]) -> bool {
    let sum = |number: fn(&Filler) -> usize| {
        seen.iter().map(|it| number(it.filler)).sum::<usize>() as f64
    };
    let mut lengths: Vec<usize> =
        seen.iter().flat_map(|it| it.filler.lengths.iter().copied()).collect();
    let rows = lengths.len();
    lengths.sort_unstable();
    lengths.dedup();
    rows >= ROWS
        && lengths.len() > 1
        && sum(|it| it.seen - it.at_ends.min(it.seen)) <= ELSEWHERE * sum(|it| it.seen)
        && sum(|it| it.repeats) <= REPEATED * sum(|it| it.pairs)
}

fn sighting(case: &Case<'_>, rule: &Rule, token: i64, seen: &[FillerSeen<'_>]) -> Sighting {
    let padding: usize = seen.iter().map(|it| it.filler.at_ends).sum();
    let targets: usize = seen.iter().map(|it| it.targets).sum();
    let message = format!(
        "token {token} fills the ends of rows, like padding, but counts in the loss: {} are padding",
        of_all(padding, targets, "target token"),
    );
    let told = seen.iter().map(|it| {
        let filled = amount(it.filler.lengths.len(), "row");
        (
            it.rank,
            format!(
                "{filled} of {} end in padding, {} tokens in all",
                it.filler.rows, it.filler.at_ends
            ),
        )
    });
    let mut finding = Finding { evidence: by_rank(told), ..rule.finding(message) };
    finding.evidence.extend(seen.iter().find_map(|it| it.at).map(|at| format!("backward at {at}")));
    let holders = Extent::of(seen.iter().map(|it| it.rank), case.observed.spec.world_size);
    Sighting::new(finding, Scope { holders, ..Scope::step(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filler(lengths: &[usize]) -> Filler {
        let at_ends = lengths.iter().sum();
        let lengths = lengths.to_vec();
        Filler { token: 0, seen: at_ends, at_ends, rows: 4, lengths, pairs: 40, repeats: 1 }
    }

    fn is_found(filler: &Filler) -> bool {
        is_padding(&[FillerSeen { rank: 0, at: None, targets: 64, filler }])
    }

    #[test]
    fn ends_of_different_lengths_are_padding() {
        assert!(is_found(&filler(&[2, 5, 3])));
    }

    #[test]
    fn a_token_of_the_data_is_no_padding() {
        let few = filler(&[2, 5]);
        let equally_long = filler(&[2, 2, 2]);
        let elsewhere = Filler { seen: 14, ..filler(&[2, 5, 3]) };
        let sorted = Filler { repeats: 20, ..filler(&[2, 5, 3]) };
        for silent in [few, equally_long, elsewhere, sorted] {
            assert!(!is_found(&silent), "{silent:?}");
        }
    }
}
