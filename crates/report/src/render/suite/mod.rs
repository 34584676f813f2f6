//! The renderers of a [`Suite`](crate::suite::Suite), for people and for programs of a CI: one file for each
//! form.

pub(super) mod github;
pub(super) mod junit;
pub(super) mod markdown;
pub(super) mod sarif;
pub(super) mod text;

use crate::suite::{Case, CaseFinding};

/// The first line of the result, or of the reason why the case has no result.
fn first_line(case: &Case) -> &str {
    let text = case.reason.as_deref().unwrap_or(&case.got);
    text.lines().next().unwrap_or_default()
}

/// The result of a case in a few words. If the case needs attention, only the names of its findings: the details are
/// shown once for all cases of a cause.
pub(super) fn in_short(case: &Case) -> String {
    if case.findings.is_empty() || !case.status.is_bad() {
        return first_line(case).to_owned();
    }
    let name = |it: &CaseFinding| it.finding.title();
    let wrong = case.findings.iter().filter(|it| it.finding.limit.is_none());
    wrong.map(name).collect::<Vec<_>>().join(", ")
}
