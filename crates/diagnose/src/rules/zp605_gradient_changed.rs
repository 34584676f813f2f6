//! ZP605: gradients are changed between the last backward and the optimizer's step.

use crate::case::Case;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_model::trace::Point;
use zprobe_report::words::{abridged, counted};
use zprobe_report::{Contribution, Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP605"),
    name: "gradient-changed",
    crash: false,
    is_handed_on: false,
    explained_by: &RuleCode::all(["ZP401"]),
    doc: include_str!("../../docs/ZP605.md"),
    check: |case, rule| rule.in_steps_of_script(case, in_step),
};

/// Reports a step in which the backwards left the planned gradients, but the optimizer consumed other ones.
fn in_step(case: &Case<'_>, rule: &Rule, step: usize) -> Option<Sighting> {
    let of_step = |entry: &&Contribution| entry.step == step;
    let consumed: Vec<_> = case.decoded.departed(Point::OptimizerInput).filter(of_step).collect();
    let left = || case.decoded.contributions.iter().filter(|it| it.point == Point::BeforeStep);
    let was_right = |entry: &&&Contribution| {
        let mut same = left().filter(|it| it.step == step && it.is_of(entry.rank)).peekable();
        same.peek().is_some() && same.all(|it| it.as_planned)
    };
    let changed: Vec<_> = consumed.iter().filter(was_right).collect();
    let first = changed.first()?;
    let mut ranks: Vec<usize> = changed.iter().flat_map(|entry| entry.ranks()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut params: Vec<String> =
        changed.iter().flat_map(|entry| entry.params.clone().unwrap_or_default()).collect();
    params.sort();
    params.dedup();
    let of = if params.is_empty() { String::new() } else { format!(" of {}", abridged(&params)) };
    let nothing = |entry: &&&&Contribution| entry.weights.iter().flatten().all(|it| *it == 0.0);
    let what = if changed.iter().filter(nothing).count() == changed.len() {
        "cleared between the last backward and the optimizer's step: the optimizer had no gradients"
    } else {
        "changed between the last backward and the optimizer's step: the backwards were right, but the optimizer \
         consumed other values"
    };
    let message = format!("gradients{of} were {what}");
    let finding = Finding {
        step: Some(step),
        rank: (ranks.len() < case.observed.spec.world_size).then_some(first.rank),
        param: if let [only] = &params[..] { Some(only.clone()) } else { None },
        evidence: vec![format!("on {}", counted("rank", &ranks))],
        ..rule.finding(message)
    };
    let numbers = params.iter().map(|name| case.observed.model.param_number(name));
    let scope = Scope {
        steps: [step].into_iter().collect(),
        holders: ranks.into_iter().collect(),
        params: numbers.collect::<Option<_>>().filter(|_| !params.is_empty()).unwrap_or_default(),
        ..Scope::default()
    };
    Some(Sighting::one_of(finding, scope))
}
