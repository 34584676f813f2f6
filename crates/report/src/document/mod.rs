//! The document: the whole content of a report in words and in order, before a form is chosen.
//!
//! [`Document::of`] makes the document of a [`Report`] once. The renderers in `render` only print its blocks; the
//! words, the order and the choice of the content are decided here.

mod brief;
mod details;
mod findings;
mod headline;
mod journey;
mod ranks;
mod setting;
mod tables;
mod weights;

pub use self::brief::{Brief, Surroundings, first_sentence};
pub use self::headline::headline;
pub use self::ranks::{MOST_APART, RankGroup, groups};
use super::{Finding, Report, Verdict};
use zprobe_model::visible::Visible;

/// A report in words, as sections of blocks.
pub struct Document<'a> {
    /// The verdict of the run.
    pub verdict: Verdict,
    /// The reason for the verdict, in one line.
    pub headline: String,
    /// The lines about the settings of the run.
    pub setting: Vec<String>,
    /// The command that repeats the run; `None` if no flags describe the run.
    pub again: Option<&'a str>,
    /// The findings, one for each root cause; [`Finding::facts`] has their parts in words.
    pub findings: &'a [Finding],
    /// The sections after the findings, in order.
    pub sections: Vec<Section<'a>>,
}

/// The subject of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The smallest configuration that shows a finding.
    Smallest,
    /// The journey of the gradient, up to its first departure from the plan.
    Journey,
    /// The last actions and the outcomes of the ranks.
    Ranks,
    /// The norms of the buffers.
    Norms,
    /// The weights of target tokens.
    Tokens,
    /// The contribution weights.
    Weights,
    /// The gradient hooks.
    Hooks,
    /// The bucket flushes.
    Buckets,
    /// The facts that the engine states about itself.
    Engine,
    /// The smallest deviation that the run could have detected, and the parts of training that were not exercised.
    Power,
    /// The software of the run, and the way in which the run was recorded.
    Run,
    /// The whole specification of the run.
    Specification,
}

/// A section of a document under a title.
pub struct Section<'a> {
    /// The subject of the section.
    pub topic: Topic,
    /// The title of the section.
    pub title: String,
    /// True if most readers do not need the section: a terminal leaves the section out, and Markdown folds it.
    pub is_detail: bool,
    /// The content of the section.
    pub blocks: Vec<Block<'a>>,
}

impl<'a> Section<'a> {
    fn new(topic: Topic, title: impl Into<String>, blocks: Vec<Block<'a>>) -> Self {
        Self { topic, title: title.into(), is_detail: false, blocks }
    }

    fn detail(topic: Topic, title: impl Into<String>, blocks: Vec<Block<'a>>) -> Self {
        Self { is_detail: true, ..Self::new(topic, title, blocks) }
    }
}

/// A part of a section, of one kind.
pub enum Block<'a> {
    /// A list of facts.
    Facts(Vec<Fact>),
    /// A list of names with their values; a terminal shows only the first few.
    Pairs(Vec<(String, String)>),
    /// A table with heads and rows.
    Table(Table),
    /// The name of a kind of buffer, and the matrices of its weights.
    Matrices(String, Vec<Matrix>),
    /// The outcomes of the ranks.
    Ranks(Vec<RankGroup<'a>>),
    /// A command line that a reader can copy.
    Command(String),
}

/// A fact: a subject, and the statements about the subject.
pub struct Fact {
    /// The subject of the fact; empty if the statements need no subject.
    pub label: String,
    /// The statements about the subject.
    pub said: Vec<TextSpan>,
}

impl Fact {
    /// A fact with a single statement.
    pub fn new(label: impl Into<String>, text: impl Into<String>) -> Self {
        Self { label: label.into(), said: vec![TextSpan::Text(text.into())] }
    }

    /// A fact with several statements.
    fn each(label: &str, said: impl IntoIterator<Item = TextSpan>) -> Self {
        Self { label: label.to_owned(), said: said.into_iter().collect() }
    }

    /// The words before each statement: `sums: `, or an empty text without a label.
    pub fn lead(&self) -> String {
        if self.label.is_empty() { String::new() } else { format!("{}: ", self.label) }
    }
}

/// A piece of text of one kind.
pub enum TextSpan {
    /// Plain text.
    Text(String),
    /// The address of a web page.
    Link(String),
    /// The name of a file or a function, or a command.
    Code(String),
}

impl TextSpan {
    /// The text without its kind.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Link(text) | Self::Code(text) => text,
        }
    }
}

/// A table with heads and rows.
pub struct Table {
    /// The heads of the columns.
    pub head: Vec<String>,
    /// The rows, each with as many cells as there are heads.
    pub rows: Vec<Vec<TableCell>>,
    /// The number of leading columns that are aligned to the left; the other columns hold numbers.
    pub left: usize,
}

impl Table {
    /// A table with heads and without rows.
    pub fn new(left: usize, head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new(), left }
    }

    /// Adds a row of cells to the table.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<TableCell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// A cell of a table.
pub struct TableCell {
    /// The text of the cell.
    pub text: String,
    /// True if the value differs from the expected value.
    pub is_wrong: bool,
}

impl From<String> for TableCell {
    fn from(text: String) -> Self {
        Self { text, is_wrong: false }
    }
}

/// The weights that a group of buffers holds.
pub struct Matrix {
    /// The steps, ranks and parameters of the buffers, in words.
    pub place: String,
    /// The weights: one row for each source rank, one column for each microbatch. `None` if all weights are as planned
    /// or the weights are ambiguous.
    pub table: Option<Table>,
    /// The wrong weights of each rank in words, for a form in which the table does not fit.
    pub words: Vec<String>,
    /// The remarks on the weights.
    pub notes: Vec<String>,
}

impl<'a> Document<'a> {
    /// Makes the document of a report without hidden characters.
    ///
    /// # Errors
    /// If the specification cannot be written as JSON, which does not happen with the specification of a run.
    pub fn of(report: &'a Visible<Report>) -> serde_json::Result<Self> {
        let sections = [
            details::smallest(report),
            journey::section(report),
            Some(ranks::section(report)),
            tables::norms(report),
            tables::tokens(report),
            weights::section(report),
            tables::hooks(report),
            tables::buckets(report),
            details::engine(report),
            Some(details::power(report)),
            Some(details::run(report)),
            Some(details::specification(&report.run.spec)?),
        ];
        Ok(Self {
            verdict: report.verdict,
            headline: headline(report),
            setting: setting::setting(report),
            again: report.run.command.as_deref(),
            findings: &report.findings,
            sections: sections.into_iter().flatten().collect(),
        })
    }

    /// The section about a topic; `None` if the document has no such section.
    pub fn about(&self, topic: Topic) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.topic == topic)
    }
}
