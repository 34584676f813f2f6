//! Renderers: one report, and one suite, in many forms. One file each, in one registry.

mod concise;
mod full;
mod html;
mod machines;
pub mod markdown;
mod suite;

pub use self::html::html;
pub use self::machines::machines;
use super::document::Surroundings;
use super::suite::Suite;
use super::{Form, Report};
use zprobe_model::visible::Visible;

/// Columns that every terminal has, and that lines for reading have at most.
pub const WIDTH: usize = 80;

/// Renders a report, alone. Text may contain ANSI styles, zprobe's own alone; nothing else in it is hidden.
///
/// # Errors
/// When JSON or XML cannot be written, which no report that the crate `zprobe-diagnose` builds leads to.
pub fn render(report: &Report, form: Form) -> anyhow::Result<String> {
    let suite = || Ok(Suite::of_run(report, String::new(), String::new(), |_| None));
    render_within(report, form, WIDTH, &Surroundings::default(), suite)
}

/// Renders a report in these surroundings for a terminal of this width in columns, with this suite of one
/// case for the forms that only suites have.
///
/// # Errors
/// As [`render`], and those of `suite`.
pub fn render_within(
    report: &Report,
    form: Form,
    columns: usize,
    around: &Surroundings<'_>,
    suite: impl FnOnce() -> anyhow::Result<Suite>,
) -> anyhow::Result<String> {
    Ok(match form {
        Form::Brief => full::brief(&Visible::of(report)?, columns, around)?,
        Form::Full => full::render(&Visible::of(report)?, columns, around)?,
        Form::Concise => concise::render(&Visible::of(report)?),
        Form::Json => report.to_json()?,
        Form::Markdown => markdown::render(&Visible::of(report)?)?,
        Form::Junit | Form::Github | Form::Sarif => render_suite(&suite()?, form)?,
    })
}

/// Renders a suite. Text may contain ANSI styles, zprobe's own alone; nothing else in it is hidden.
///
/// # Errors
/// When JSON or XML cannot be written, which no suite that [`Suite::new`] makes leads to.
pub fn render_suite(suite: &Suite, form: Form) -> anyhow::Result<String> {
    render_suite_within(suite, form, WIDTH)
}

/// Renders a suite for a terminal of so many columns.
///
/// # Errors
/// As [`render_suite`].
pub fn render_suite_within(suite: &Suite, form: Form, columns: usize) -> anyhow::Result<String> {
    let visible = || Visible::of(suite);
    Ok(match form {
        Form::Brief | Form::Full => suite::text::full(&visible()?, columns),
        Form::Concise => suite::text::concise(&visible()?),
        Form::Json => suite.to_json()?,
        Form::Markdown => suite::markdown::render(&visible()?),
        Form::Junit => suite::junit::render(&visible()?)?,
        Form::Github => suite::github::render(&visible()?),
        // The documentation of rules is zprobe's own.
        Form::Sarif => suite::sarif::render(&visible()?, &suite.pages)?,
    })
}
