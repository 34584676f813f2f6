//! ZP609: two parameters that the model's configuration ties are separate tensors.

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::RuleCode;

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP609"),
    name: "weights-untied",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP609.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    let pairs = case.observed.script.remarks.values().flat_map(|it| it.untied.iter());
    let Some((one, other)) = pairs.into_iter().next() else { return Vec::new() };
    let mut finding = rule.finding(format!(
        "{one} and {other} are two tensors, but the model's configuration ties them (tie_word_embeddings): each gets a \
         part of the gradient"
    ));
    finding.evidence.push(
        "to_empty(), load_state_dict(assign=True), deepcopy and sharding take tied weights apart: call tie_weights() \
         afterwards, before the optimizer is made"
            .to_owned(),
    );
    vec![Sighting::new(finding, Scope::default())]
}
