//! The forms in which documents are printed.

use clap::ValueEnum as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use zprobe_model::spec::named_enum;

named_enum! {
    /// The form of a document on standard output (`--output-format`): a report, a suite, a comparison or a table.
    pub enum Form {
        /// One screen for reading: the verdict, the fix and the main finding.
        Brief = "brief",
        /// The whole document, for reading.
        Full = "full",
        /// One line for the verdict or the summary, and one for each finding or each case that needs attention.
        Concise = "concise",
        /// The whole document, for programs.
        Json = "json",
        /// Markdown, for issues, pull requests, job summaries and documentation.
        Markdown = "markdown",
        /// JUnit XML: each run is a test.
        Junit = "junit",
        /// Annotations for GitHub Actions.
        Github = "github",
        /// SARIF 2.1.0, for code scanning.
        Sarif = "sarif",
    }
}

impl Form {
    /// The forms of a suite.
    pub const OF_A_SUITE: &'static [Self] = &[
        Self::Full,
        Self::Concise,
        Self::Json,
        Self::Markdown,
        Self::Junit,
        Self::Github,
        Self::Sarif,
    ];

    /// The forms of a table and of a comparison.
    pub const OF_A_TABLE: &'static [Self] = &[Self::Full, Self::Json, Self::Markdown];

    /// A parser for command-line arguments that accepts only these forms.
    pub fn among(forms: &'static [Self]) -> impl TypedValueParser<Value = Self> {
        let values = forms.iter().filter_map(clap::ValueEnum::to_possible_value);
        PossibleValuesParser::new(values).try_map(|name| Self::from_str(&name, false))
    }
}
