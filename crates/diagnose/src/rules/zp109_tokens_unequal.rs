//! ZP109: the elements of a loss do not weigh as the user demands, or their weights follow no law.

use crate::case::Case;
use crate::loss::law::{self, ElementWeights, Law};
use crate::loss::{StepTerm, by_step, main, table_of};
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::spec::Weighting;
use zprobe_model::trace::TermOf;
use zprobe_report::words::{amount, weight_text};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP109"),
    name: "tokens-unequal",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP110", "ZP113"]),
    doc: include_str!("../../docs/ZP109.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let spec = case.observed.spec;
    let Some(script) = spec.script() else { return Vec::new() };
    let recorded: Vec<usize> = spec.recorded_steps().collect();
    let steps = by_step(case).into_iter().filter(|(step, _)| recorded.contains(step));
    let wrong = steps.filter_map(|(step, terms)| {
        let term = main(&terms)?;
        let weights = law::read(spec, term)?;
        let why = why(case, term, &weights, script.weighting)?;
        Some(finding(rule, step, term, &weights, &why))
    });
    wrong.collect()
}

/// Returns the reason why the law of a term is a finding; `None` if it is none.
fn why(
    case: &Case<'_>,
    term: &StepTerm<'_>,
    weights: &ElementWeights,
    demanded: Weighting,
) -> Option<String> {
    if demanded != Weighting::Any {
        return (!weights.is(demanded))
            .then(|| format!("--weighting {demanded} demands other weights"));
    }
    let is_of_tokens = term.of() == TermOf::Tokens;
    let (accumulates, of_step) = (accumulates(case), counts_the_step(case));
    let why = match weights.law {
        // With one microbatch per rank, a rank's own count gives a plain mean, which is wrong only under a Trainer.
        Law::Rank if accumulates || of_step => {
            "count the tokens of all ranks of the step, or divide the loss by a number that is equal on all ranks"
        }
        Law::None | Law::Graded(_) => {
            "the weights follow no pattern: neither by token, nor by sample, nor by microbatch"
        }
        Law::Microbatch if is_of_tokens && !weights.is_any && accumulates && of_step => {
            "the Trainer averages over the step: let compute_loss accept num_items_in_batch, and divide the sum by \
             num_items_in_batch (not possible before transformers 4.46)"
        }
        _ => return None,
    };
    Some(why.to_owned())
}

/// True if a step has several microbatches.
fn accumulates(case: &Case<'_>) -> bool {
    case.observed.spec.gradient_accumulation_steps > 1
}

/// True if the script has a trainer that divides by the tokens of the whole step.
fn counts_the_step(case: &Case<'_>) -> bool {
    let engines = case.observed.script.remarks.values().flat_map(|it| it.engines.iter());
    engines.into_iter().any(|it| it == "num_items_in_batch")
}

fn finding(
    rule: &Rule,
    step: usize,
    term: &StepTerm<'_>,
    weights: &ElementWeights,
    why: &str,
) -> Sighting {
    let message = format!("{}; {why}", weights.describe(term.noun()));
    let rows = table_of(term);
    let extremes = [
        rows.iter().max_by(|a, b| a.most.total_cmp(&b.most)).map(|row| (row, row.most)),
        rows.iter().min_by(|a, b| a.least.total_cmp(&b.least)).map(|row| (row, row.least)),
    ];
    let told = extremes.into_iter().flatten().map(|(row, weight)| {
        format!(
            "step {}, rank {}, microbatch {} with {}: a token weighs {} times the mean",
            row.step,
            row.rank,
            row.microbatch,
            amount(row.tokens, "target token"),
            weight_text(weight),
        )
    });
    let mut finding = Finding { evidence: told.collect(), ..rule.finding(message) };
    finding.evidence.extend(term.backward_lines());
    let scope = Scope { steps: [step].into_iter().collect(), ..Scope::default() };
    Sighting::one_of(finding, scope)
}
