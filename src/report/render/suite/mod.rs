//! Renderers of a [`Suite`], for people and for what runs in a CI: one file each, in one registry.

mod github;
mod junit;
mod markdown;
mod sarif;
mod text;

use super::WIDTH;
use crate::report::suite::{Case, CaseFinding, Suite};
use crate::report::{Finding, Form};
use crate::visible::Visible;

/// Renders a suite. Text may contain ANSI styles, zprobe's own alone; nothing else in it is hidden.
///
/// # Errors
/// When JSON or XML cannot be written, which no suite that [`Suite::new`] makes leads to.
pub fn render(suite: &Suite, form: Form) -> anyhow::Result<String> {
    render_within(suite, form, WIDTH)
}

/// Renders a suite for a terminal of so many columns.
///
/// # Errors
/// As [`render`].
pub fn render_within(suite: &Suite, form: Form, columns: usize) -> anyhow::Result<String> {
    Ok(match form {
        Form::Full => text::full(&Visible::of(suite)?, columns),
        Form::Concise => text::concise(&Visible::of(suite)?),
        Form::Json => suite.to_json()?,
        Form::Markdown => markdown::render(&Visible::of(suite)?),
        Form::Junit => junit::render(&Visible::of(suite)?)?,
        Form::Github => github::render(&Visible::of(suite)?),
        // The documentation of rules is zprobe's own.
        Form::Sarif => sarif::render(&Visible::of(suite)?, &suite.pages)?,
    })
}

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
    let name = |it: &CaseFinding| format!("{} {}", it.finding.code, it.finding.name);
    let wrong = case.findings.iter().filter(|it| it.finding.limit.is_none());
    wrong.map(name).collect::<Vec<_>>().join(", ")
}

/// Facts about a finding, one a line: its evidence, its consequences, and the known bugs that it
/// looks like.
fn facts(finding: &Finding) -> impl Iterator<Item = String> {
    let known = finding.known.iter().map(|known| {
        format!(
            "known bug {}: {}; what to do: {}",
            known.name,
            known.description(),
            known.workaround
        )
    });
    let follows = finding.consequences.iter();
    let follows = follows.map(|it| format!("follows from it: {}: {}", it.code, it.message));
    finding.evidence.iter().cloned().chain(follows).chain(known)
}
