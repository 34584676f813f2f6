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
        /// For issues, pull requests and job summaries.
        Markdown = "markdown",
    }
}

/// Columns that every terminal has, and that lines for reading have at most.
pub const WIDTH: usize = 80;

/// Renders a report. Text may contain ANSI styles, zprobe's own alone; nothing else in it is hidden.
///
/// # Errors
/// When JSON cannot be written, which no report that [`crate::diagnose`] builds leads to.
pub fn render(report: &Report, format: Format) -> anyhow::Result<String> {
    render_within(report, format, WIDTH)
}

/// The same for a terminal of so many columns.
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

/// The verdict's reason in one line.
pub(super) fn headline(report: &Report) -> String {
    full::headline(report)
}
