//! The document: everything that is said of a run, in order, before it has a form.
//!
//! [`Document::of`] makes it of a [`Report`], once. Printers (`render`) give its blocks a form; words, order and
//! choice of the content are decided here.

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

/// A report as a document.
pub struct Document<'a> {
    /// The verdict.
    pub verdict: Verdict,
    /// Reason for the verdict, in one line.
    pub headline: String,
    /// Lines about the settings of the run.
    pub setting: Vec<String>,
    /// Command that makes the run again.
    pub again: Option<&'a str>,
    /// Findings, one root cause after the other; their parts in words are [`Finding::facts`].
    pub findings: &'a [Finding],
    /// Sections behind the findings, in order.
    pub sections: Vec<Section<'a>>,
}

/// Subject of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The smallest configuration that shows a finding.
    Smallest,
    /// The journey of the gradient, to its first departure from the plan.
    Journey,
    /// Last actions and endings of the ranks.
    Ranks,
    /// Norms of buffers.
    Norms,
    /// Weights of target tokens.
    Tokens,
    /// Contribution weights.
    Weights,
    /// Gradient hooks.
    Hooks,
    /// Bucket flushes.
    Buckets,
    /// Facts that the engine states about itself.
    Engine,
    /// The smallest deviation that was visible, and parts of training that were not exercised.
    Power,
    /// Software of the run, and its recording.
    Run,
    /// The whole specification of the run.
    Specification,
}

/// A section under a title.
pub struct Section<'a> {
    /// Subject of the section.
    pub topic: Topic,
    /// Title of the section.
    pub title: String,
    /// True if a reader in a hurry can do without: a terminal leaves the section out, Markdown folds it.
    pub is_detail: bool,
    /// Content of the section.
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

/// A part of a section.
pub enum Block<'a> {
    /// Facts, one after the other.
    Facts(Vec<Fact>),
    /// Names with their values, of which a terminal shows the first few.
    Pairs(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// Matrices of weights of one kind of buffer, with the name of the buffer.
    Matrices(String, Vec<Matrix>),
    /// Endings of ranks.
    Ranks(Vec<RankGroup<'a>>),
    /// A command line, to be copied.
    Command(String),
}

/// A fact: what it is about, and what is said of that.
pub struct Fact {
    /// Subject of the fact; empty where the words speak for themselves.
    pub label: String,
    /// Statements about the subject.
    pub said: Vec<Span>,
}

impl Fact {
    /// A fact in words.
    pub fn new(label: impl Into<String>, text: impl Into<String>) -> Self {
        Self { label: label.into(), said: vec![Span::Text(text.into())] }
    }

    /// Several statements about one subject.
    fn each(label: &str, said: impl IntoIterator<Item = Span>) -> Self {
        Self { label: label.to_owned(), said: said.into_iter().collect() }
    }

    /// Words before each statement: `sums: `.
    pub fn lead(&self) -> String {
        if self.label.is_empty() { String::new() } else { format!("{}: ", self.label) }
    }
}

/// Words of one kind.
pub enum Span {
    /// Plain words.
    Text(String),
    /// An address.
    Link(String),
    /// Name of a file or a function.
    Code(String),
}

impl Span {
    /// The words.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Link(text) | Self::Code(text) => text,
        }
    }
}

/// A table.
pub struct Table {
    /// Heads of the columns.
    pub head: Vec<String>,
    /// Rows, with as many cells as there are heads.
    pub rows: Vec<Vec<Cell>>,
    /// Number of columns that are aligned to the left; the others hold numbers.
    pub left: usize,
}

impl Table {
    /// A table without rows.
    pub fn new(left: usize, head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new(), left }
    }

    /// Adds a row of cells.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// A cell of a table.
pub struct Cell {
    /// Text of the cell.
    pub text: String,
    /// True if the value is not what it should be.
    pub is_wrong: bool,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, is_wrong: false }
    }
}

/// Weights that some buffers hold.
pub struct Matrix {
    /// Steps, ranks and parameters of the buffers.
    pub place: String,
    /// One row a source rank, one column a microbatch; none where all weights are as planned.
    pub table: Option<Table>,
    /// The table in words, for a form that has no room for it: the weights of each rank that are wrong.
    pub words: Vec<String>,
    /// Remarks on the weights.
    pub notes: Vec<String>,
}

impl<'a> Document<'a> {
    /// The document of a report in which nothing is hidden.
    ///
    /// # Errors
    /// When the specification cannot be written as JSON, which does not happen with that of a run.
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

    /// The section about a topic, if there is one.
    pub fn about(&self, topic: Topic) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.topic == topic)
    }
}
