//! Renders the document as GitHub's Markdown, for issues, pull requests and job summaries.

mod escape;

pub use self::escape::{block, code, escaped, escaped_html};

use self::escape::address;
use super::Report;
use crate::Finding;
use crate::document::{Block, Document, Fact, Matrix, RankGroup, Section, Table, TextSpan};
use zprobe_model::visible::Visible;

/// The largest number of columns (microbatches) and of rows (ranks) of a readable matrix.
const MATRIX_COLUMNS: usize = 24;
const MATRIX_ROWS: usize = 64;

/// The largest number of rows of a table that is not folded.
const OPEN_ROWS: usize = 16;

/// Renders the whole report.
pub(super) fn render(report: &Visible<Report>) -> serde_json::Result<String> {
    let document = Document::of(report)?;
    let verdict = document.verdict.name().to_uppercase();
    let mut text = format!("## zprobe: {verdict}, {}\n\n", escaped(&document.headline));
    text += &items(&document.setting);
    text.extend(document.again.map(|command| block("", command)));
    text += &findings(document.findings);
    for section in &document.sections {
        text += &titled(section);
    }
    Ok(text)
}

/// Lines as the items of a list.
pub fn items(lines: &[String]) -> String {
    lines.iter().map(|line| format!("- {}\n", escaped(line))).collect()
}

/// The findings with all of their facts, one root cause after the other.
pub fn findings(findings: &[Finding]) -> String {
    findings.iter().map(finding).collect()
}

fn finding(finding: &Finding) -> String {
    let (title, place) = (escaped(&finding.title()), escaped(&finding.place()));
    let place = if place.is_empty() { place } else { format!(" ({place})") };
    format!("\n**{title}**{place}: {}\n\n{}", escaped(&finding.message), facts(&finding.facts()))
}

/// A section under its title. Sections of details and sections with a long table are folded.
pub fn titled(section: &Section<'_>) -> String {
    let long =
        |block: &Block<'_>| matches!(block, Block::Table(table) if table.rows.len() > OPEN_ROWS);
    if section.is_detail || section.blocks.iter().any(long) {
        let title = escaped_html(&section.title);
        return format!("\n<details><summary>{title}</summary>\n{}\n</details>\n", body(section));
    }
    format!("\n#### {}\n{}", escaped(&section.title), body(section))
}

/// The content of a section without its title.
pub fn body(section: &Section<'_>) -> String {
    section.blocks.iter().map(|block| format!("\n{}", blocks(block))).collect()
}

fn blocks(content: &Block<'_>) -> String {
    match content {
        Block::Facts(list) => facts(list),
        Block::Pairs(pairs) => {
            let mut table = Table::new(2, ["what", "value"]);
            pairs.iter().for_each(|(name, value)| table.row([name.clone(), value.clone()]));
            grid(&table)
        }
        Block::Table(table) => grid(table),
        Block::Matrices(what, matrices) => {
            matrices.iter().map(|it| matrix(what, it)).collect::<Vec<_>>().join("\n")
        }
        Block::Ranks(groups) => groups.iter().map(ranks).collect(),
        Block::Command(command) => block("", command),
    }
}

/// Facts as the items of a list.
pub fn facts(facts: &[Fact]) -> String {
    let item = |fact: &Fact| {
        let lead = escaped(&fact.lead());
        let line = |said: &TextSpan| format!("- {lead}{}\n", span(said));
        fact.said.iter().map(line).collect::<String>()
    };
    facts.iter().map(item).collect()
}

fn span(span: &TextSpan) -> String {
    match span {
        TextSpan::Text(text) => escaped(text),
        TextSpan::Link(link) => address(link),
        TextSpan::Code(name) => code(name),
    }
}

/// A table in which wrong values are bold.
fn grid(table: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule = |at: usize| if at < table.left { "---" } else { "---:" }.to_owned();
    let mut text = row(table.head.iter().map(|head| escaped(head)).collect());
    text += &row((0..table.head.len()).map(rule).collect());
    for cells in &table.rows {
        let cell =
            |text: &str, is_wrong| if is_wrong { format!("**{text}**") } else { text.into() };
        text += &row(cells.iter().map(|it| cell(&escaped(&it.text), it.is_wrong)).collect());
    }
    text
}

fn matrix(what: &str, matrix: &Matrix) -> String {
    let mut text = format!("{} in {}:\n\n", escaped(what), escaped(&matrix.place));
    match &matrix.table {
        Some(table)
            if table.head.len() <= 1 + MATRIX_COLUMNS && table.rows.len() <= MATRIX_ROWS =>
        {
            text += &format!("{}\n", grid(table));
        }
        Some(_) => text += &items(&matrix.words),
        None => {}
    }
    text + &items(&matrix.notes)
}

/// The outcomes of a group of ranks, with their failures, the names of their logs, and stack traces.
fn ranks(group: &RankGroup<'_>) -> String {
    let first = group.first();
    let label = format!("{} ({})", group.label(), first.ending());
    let mut text = facts(&[Fact::new(label, &first.last)]);
    for words in group.failures().into_iter().chain(group.stderr()) {
        text += &format!("\n{}\n", block("", words));
    }
    for (title, lines) in group.stacks() {
        text += &format!("\n{}:\n\n{}\n", escaped(&title), block("", &lines));
    }
    text
}
