//! Forms in which documents are printed.

use clap::ValueEnum as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use zprobe_model::spec::named_enum;

named_enum! {
    /// Form of a document on standard output (`--output-format`): a report, a suite, a comparison or a table.
    pub enum Form {
        /// A screen for reading: the verdict, the fix, and what it is about.
        Brief = "brief",
        /// The whole document, for reading.
        Full = "full",
        /// A line for all, and one for each finding or each case that is not well.
        Concise = "concise",
        /// The whole document, for programs.
        Json = "json",
        /// Markdown, for issues, pull requests, summaries of jobs and documentation.
        Markdown = "markdown",
        /// JUnit XML: runs as tests.
        Junit = "junit",
        /// Annotations of GitHub Actions.
        Github = "github",
        /// SARIF 2.1.0, for code scanning.
        Sarif = "sarif",
    }
}

impl Form {
    /// Forms of a suite.
    pub const OF_A_SUITE: &'static [Self] = &[
        Self::Full,
        Self::Concise,
        Self::Json,
        Self::Markdown,
        Self::Junit,
        Self::Github,
        Self::Sarif,
    ];

    /// Forms of a table and of a comparison.
    pub const OF_A_TABLE: &'static [Self] = &[Self::Full, Self::Json, Self::Markdown];

    /// Reads one of these forms from a command line.
    pub fn among(forms: &'static [Self]) -> impl TypedValueParser<Value = Self> {
        let values = forms.iter().filter_map(clap::ValueEnum::to_possible_value);
        PossibleValuesParser::new(values).try_map(|name| Self::from_str(&name, false))
    }
}
