//! The renderers of a report and of a suite, one file for each form. [`render`] and [`render_suite`] choose the
//! renderer of a form.

mod concise;
mod full;
mod html;
mod machines;
pub mod markdown;
mod suite;
mod tensorboard;
mod trace_events;

pub use self::html::{html, suite_html};
pub use self::machines::machines;
pub use self::tensorboard::tensorboard;
pub use self::trace_events::trace_events;
use super::document::Surroundings;
use super::suite::Suite;
use super::{Form, Report};
use zprobe_model::visible::Visible;

/// The width in columns that every terminal has, and the largest width of lines for reading.
pub const WIDTH: usize = 80;

/// Renders a report without surroundings. The text may contain zprobe's own ANSI styles, and no other hidden
/// characters.
///
/// # Errors
/// If JSON or XML cannot be written, which never happens with a report that the crate `zprobe-diagnose` builds.
pub fn render(report: &Report, form: Form) -> anyhow::Result<String> {
    let suite = || Ok(Suite::of_run(report, String::new(), String::new(), |_| None));
    render_within(report, form, WIDTH, &Surroundings::default(), suite)
}

/// Renders a report in these surroundings, for a terminal of this width in columns. Forms that only suites have are
/// made from `suite`, a suite of one case.
///
/// # Errors
/// The errors of [`render`], and those of `suite`.
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

/// Renders a suite. The text may contain zprobe's own ANSI styles, and no other hidden characters.
///
/// # Errors
/// If JSON or XML cannot be written, which never happens with a suite that [`Suite::new`] makes.
pub fn render_suite(suite: &Suite, form: Form) -> anyhow::Result<String> {
    render_suite_within(suite, form, WIDTH)
}

/// Renders a suite for a terminal of this width in columns.
///
/// # Errors
/// The errors of [`render_suite`].
pub fn render_suite_within(suite: &Suite, form: Form, columns: usize) -> anyhow::Result<String> {
    let visible = || Visible::of(suite);
    Ok(match form {
        Form::Brief | Form::Full => suite::text::full(&visible()?, columns),
        Form::Concise => suite::text::concise(&visible()?),
        Form::Json => suite.to_json()?,
        Form::Markdown => suite::markdown::render(&visible()?),
        Form::Junit => suite::junit::render(&visible()?)?,
        Form::Github => suite::github::render(&visible()?),
        // The documentation of rules is zprobe's own text, so nothing in it has to be made visible.
        Form::Sarif => suite::sarif::render(&visible()?, &suite.pages)?,
    })
}
