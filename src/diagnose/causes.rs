//! One finding per root cause: what another finding explains becomes its consequence.

use super::rules;
use crate::report::{Consequence, Finding};

/// Hangs every finding that another one explains under that one. Where several could explain it,
/// the first by the order of the rule's own list does.
pub fn arrange(findings: Vec<Finding>) -> Vec<Finding> {
    let present: Vec<String> = findings.iter().map(|finding| finding.code.clone()).collect();
    let (mut roots, explained): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| root_of(&finding.code, &present) == finding.code);
    for finding in explained {
        let code = root_of(&finding.code, &present);
        let root = roots.iter_mut().find(|root| root.code == code);
        if let Some(root) = root {
            root.consequences.push(Consequence { code: finding.code, message: finding.message });
            root.consequences.extend(finding.consequences);
        }
    }
    roots
}

/// The code at the end of the chain of explanations that starts at `code`. Chains end, because
/// explanations have no cycles (`tests/documentation.rs`).
fn root_of<'a>(code: &'a str, present: &'a [String]) -> &'a str {
    let causes = rules::find(code).map_or(&[][..], |rule| rule.explained_by);
    let cause = causes.iter().find_map(|cause| present.iter().find(|other| other == cause));
    cause.map_or(code, |cause| root_of(cause, present))
}
