//! Renderers of a [`Suite`], for people and for what runs in a CI: one file each, in one registry.

mod github;
mod json;
mod junit;
mod markdown;
mod sarif;
mod text;

use super::WIDTH;
use crate::report::Finding;
use crate::report::suite::{Case, CaseFinding, Suite};
use crate::spec::named_enum;
use crate::visible::Visible;

named_enum! {
    /// Form of the report on a suite.
    pub enum SuiteFormat {
        /// A line for each case, and each failure with its evidence.
        Full = "full",
        /// A line for each case that is not well, and one for all.
        Concise = "concise",
        /// JSON of the whole suite, for programs.
        Json = "json",
        /// A table, and each failure folded.
        Markdown = "markdown",
        /// JUnit XML: cases as tests.
        Junit = "junit",
        /// Annotations of GitHub Actions.
        Github = "github",
        /// SARIF 2.1.0, for code scanning.
        Sarif = "sarif",
    }
}

impl SuiteFormat {
    /// Forms in which a single run is rendered as a suite of one case; for the others it has forms
    /// of its own.
    pub const OF_A_RUN: [Self; 3] = [Self::Junit, Self::Github, Self::Sarif];
}

/// Renders a suite. The text may contain ANSI styles, but only zprobe's own; all other control
/// characters are made visible.
///
/// # Errors
/// When JSON or XML cannot be written, which does not happen with a suite that [`Suite::new`]
/// makes.
pub fn render(suite: &Suite, format: SuiteFormat) -> anyhow::Result<String> {
    render_within(suite, format, WIDTH)
}

/// Renders a suite for a terminal of so many columns.
///
/// # Errors
/// As [`render`].
pub fn render_within(suite: &Suite, format: SuiteFormat, columns: usize) -> anyhow::Result<String> {
    Ok(match format {
        SuiteFormat::Full => text::full(&Visible::of(suite)?, columns),
        SuiteFormat::Concise => text::concise(&Visible::of(suite)?),
        SuiteFormat::Json => json::render(suite)?,
        SuiteFormat::Markdown => markdown::render(&Visible::of(suite)?),
        SuiteFormat::Junit => junit::render(&Visible::of(suite)?)?,
        SuiteFormat::Github => github::render(&Visible::of(suite)?),
        // The documentation of rules is zprobe's own.
        SuiteFormat::Sarif => sarif::render(&Visible::of(suite)?, &suite.pages)?,
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
