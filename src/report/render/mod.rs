//! Renderers: one report, many forms. One file each, in one registry.

mod concise;
mod full;
mod html;
mod json;
pub mod markdown;
pub mod suite;

pub use self::html::html;
use super::Report;
use crate::spec::named_enum;
use crate::visible::Visible;

named_enum! {
    /// Form of the report on standard output (`--output-format`).
    pub enum Format {
        /// Verdict, findings and tables, for reading.
        Full = "full",
        /// A line for the verdict and one for each finding.
        Concise = "concise",
        /// `report.json`.
        Json = "json",
        /// Markdown for issues, pull requests and job summaries.
        Markdown = "markdown",
    }
}

/// Width of every terminal at least, and of lines for reading at most, in columns.
pub const WIDTH: usize = 80;

/// Renders a report. The text may contain ANSI styles, but only zprobe's own; all other control
/// characters are made visible.
///
/// # Errors
/// When JSON cannot be written, which does not happen with a report that [`crate::diagnose`]
/// builds.
pub fn render(report: &Report, format: Format) -> anyhow::Result<String> {
    render_within(report, format, WIDTH)
}

/// Renders a report for a terminal of so many columns.
///
/// # Errors
/// As [`render`].
pub fn render_within(report: &Report, format: Format, columns: usize) -> anyhow::Result<String> {
    Ok(match format {
        Format::Full => full::render(&Visible::of(report)?, columns),
        Format::Concise => concise::render(&Visible::of(report)?),
        Format::Json => json::render(report)?,
        Format::Markdown => markdown::render(&Visible::of(report)?),
    })
}

/// Reason for the verdict, in one line.
pub(super) fn headline(report: &Report) -> String {
    full::headline(report)
}
