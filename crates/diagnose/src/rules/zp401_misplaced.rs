//! ZP401: an element of the model is held by no optimizer, or by too many.

use crate::case::Case;
use crate::placement::OwnedSpan;
use crate::rule::{Rule, Sighting};
use crate::scope::Scope;
use zprobe_report::words::{abridged, amount, counted};
use zprobe_report::{Finding, RuleCode};

pub(super) const RULE: Rule = Rule {
    code: RuleCode::new("ZP401"),
    name: "misplaced",
    crash: false,
    is_handed_on: false,
    explained_by: &[],
    doc: include_str!("../../docs/ZP401.md"),
    check,
};

fn check(case: &Case<'_>, rule: &Rule) -> Vec<Sighting> {
    // A rank that never described its partition may hold any element, and so may an unrecognised tensor.
    if !case.placement.is_complete() || case.observed.holds_unknown() {
        return Vec::new();
    }
    let spec = case.observed.spec;
    let lost = case.missing.lost.clone();
    let spans = case.placement.spans(&case.plan).into_iter();
    let held = spans.filter(|span| !span.owners.is_empty());
    let is_script = spec.script().is_some();
    let replicas = spec.replicas();
    let counts = |param: usize| {
        let all = (0..spec.world_size).filter(|rank| case.observed.model.has(*rank, param)).count();
        [1, all, replicas]
    };
    // A script may have groups of ranks that hold the same elements.
    let is_right = |span: &OwnedSpan| {
        is_once(span) && (is_script || counts(span.param).contains(&span.owners.len()))
    };
    let shared: Vec<OwnedSpan> = held.filter(|span| !is_right(span)).collect();
    [
        (lost, "by no rank's optimizer"),
        (
            shared,
            if is_script {
                "twice by the optimizers of one rank"
            } else {
                "by the optimizers of several ranks but not of all, or twice by one rank's optimizer"
            },
        ),
    ]
    .into_iter()
    .filter(|(spans, _)| !spans.is_empty())
    .map(|(spans, who)| finding(case, rule, &spans, who))
    // Elements that no rank holds and elements that too many ranks hold are one finding.
    .reduce(|mut lost, shared| {
        lost.param = None;
        lost.evidence.push(shared.message);
        lost.evidence.extend(shared.evidence);
        lost
    })
    .map(|mut finding| {
        finding.evidence.extend(strays(case));
        Sighting::new(finding, Scope::default())
    })
    .into_iter()
    .collect()
}

/// Describes tensors in a script's optimizers that forward does not use; `None` if there are none.
fn strays(case: &Case<'_>) -> Option<String> {
    let strays =
        case.observed.script.remarks.values().map(|it| it.strays).max().filter(|it| *it > 0)?;
    Some(format!(
        "optimizers hold {} that no forward uses: the optimizers got parameters before the model was sharded, copied \
         or moved, or before its first forward",
        amount(strays, "other tensor"),
    ))
}

/// True if no rank holds the span twice.
fn is_once(span: &OwnedSpan) -> bool {
    span.owners.windows(2).all(|pair| pair[0] < pair[1])
}

fn finding(case: &Case<'_>, rule: &Rule, spans: &[OwnedSpan], who: &str) -> Finding {
    let elements: usize = spans.iter().map(|span| span.flat.len()).sum();
    let mut names: Vec<String> =
        spans.iter().map(|span| case.observed.model.param_name(span.param)).collect();
    names.dedup();
    let mut finding =
        rule.finding(format!("{elements} elements of {} are held {who}", abridged(&names)));
    if let [name] = &names[..] {
        finding.param = Some(name.clone());
    }
    finding.evidence = spans
        .iter()
        .map(|span| {
            let first = span.flat.start - case.plan.params()[span.param].offset;
            format!(
                "{}, elements {first} to {}: held by {}",
                case.observed.model.param_name(span.param),
                first + span.flat.len() - 1,
                counted("rank", &span.owners),
            )
        })
        .collect();
    finding
}
