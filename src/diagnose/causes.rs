//! One finding per root cause: what another finding explains becomes its consequence.

use super::rules;
use crate::report::{Consequence, Finding};

/// Hangs every finding that another one explains under that one. The order of `findings`, by code,
/// decides among several explanations.
pub fn arrange(findings: Vec<Finding>) -> Vec<Finding> {
    let explained_by =
        |finding: &Finding| rules::find(&finding.code).map_or(&[][..], |rule| rule.explained_by);
    let present: Vec<String> = findings.iter().map(|finding| finding.code.clone()).collect();
    let is_explained = |finding: &Finding| {
        explained_by(finding).iter().any(|code| present.iter().any(|other| other == code))
    };
    let (explained, mut roots): (Vec<_>, Vec<_>) = findings.into_iter().partition(is_explained);
    for finding in explained {
        let causes = explained_by(&finding);
        let consequence = Consequence { code: finding.code, message: finding.message };
        // A cause may itself be explained; then its own root is among the roots.
        let root = roots
            .iter()
            .position(|root| causes.contains(&root.code.as_str()))
            .or_else(|| (!roots.is_empty()).then_some(0));
        if let Some(root) = root {
            roots[root].consequences.push(consequence);
            roots[root].consequences.extend(finding.consequences);
        }
    }
    roots
}
