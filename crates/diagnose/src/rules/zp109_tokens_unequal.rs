//! ZP109: the elements of a loss do not weigh as the user demands, or their weights follow no law.

use crate::case::Case;
use crate::loss::law::{self, ElementWeights, Law};
use crate::loss::{StepTerm, by_step, main, table};
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
    doc: include_str!("../../../../docs/rules/ZP109.md"),
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
        Some(finding(case, rule, step, term, &weights, &why))
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
            .then(|| format!("--weighting {demanded} demands something else"));
    }
    let is_of_tokens = term.of() == TermOf::Tokens;
    match weights.law {
        Law::Rank => Some(
            "count them over all ranks of the step, or divide the loss by a number that is the same on all ranks"
                .to_owned(),
        ),
        Law::None | Law::Graded(_) => Some("no law holds: neither by token, nor by sample, nor by microbatch".to_owned()),
        Law::Microbatch if is_of_tokens && !weights.is_any && means_the_step(case) => Some(
            "the Trainer averages over the step: let compute_loss accept num_items_in_batch, and divide the sum by it \
             (before transformers 4.46 it cannot)"
                .to_owned(),
        ),
        _ => None,
    }
}

/// True if the script has a trainer that divides by the tokens of the whole step.
fn means_the_step(case: &Case<'_>) -> bool {
    let engines = case.observed.script.remarks.values().flat_map(|it| it.engines.iter());
    let counts_the_step = engines.into_iter().any(|it| it == "num_items_in_batch");
    counts_the_step && case.observed.spec.gradient_accumulation_steps > 1
}

fn finding(
    case: &Case<'_>,
    rule: &Rule,
    step: usize,
    term: &StepTerm<'_>,
    weights: &ElementWeights,
    why: &str,
) -> Sighting {
    let message = format!("{}; {why}", weights.describe(term.noun()));
    let rows = table(case);
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
