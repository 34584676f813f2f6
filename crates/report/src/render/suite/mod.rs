//! Renderers of a [`Suite`](crate::suite::Suite), for people and for what runs in a CI: one file each.

pub(super) mod github;
pub(super) mod junit;
pub(super) mod markdown;
pub(super) mod sarif;
pub(super) mod text;

use crate::suite::{Case, CaseFinding};

/// First line of the result, or of the reason why there is none.
fn first_line(case: &Case) -> &str {
    let text = case.reason.as_deref().unwrap_or(&case.got);
    text.lines().next().unwrap_or_default()
}

/// Result in few words: the findings of a case that is not well by name, because its cause says the
/// rest once for all of its cases.
fn in_short(case: &Case) -> String {
    if case.findings.is_empty() || !case.status.is_bad() {
        return first_line(case).to_owned();
    }
    let name = |it: &CaseFinding| it.finding.title();
    let wrong = case.findings.iter().filter(|it| it.finding.limit.is_none());
    wrong.map(name).collect::<Vec<_>>().join(", ")
}
