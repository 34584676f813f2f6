//! Renders the first screen: the verdict, the main finding in about twelve lines, and the next command. A long screen has
//! the verdict once more at its end.

use anstyle::Style;

use super::page::{BOLD, DIM, TerminalPage, verdict_style};
use super::{MATRIX_COLUMNS, MATRIX_ROWS};
use crate::Report;
use crate::document::{Block, Document, Fact, Matrix, Surroundings, Table, Topic};
use crate::words::amount;
use zprobe_model::visible::Visible;

/// The width of the margin for labels, in columns.
const MARGIN: usize = 11;

/// The number of lines that a usual terminal shows.
const SCREEN: usize = 24;

/// The largest number of lines after the facts: the next command and the command that repeats the run.
const LAST_LINES: usize = 3;

pub(in crate::render) fn render(
    report: &Visible<Report>,
    width: usize,
    around: &Surroundings<'_>,
) -> serde_json::Result<String> {
    let document = Document::of(report)?;
    let mut page = TerminalPage::new(width);
    let style = verdict_style(document.verdict);
    let first = format!("{style}{}{style:#}  ", document.verdict.name().to_uppercase());
    let headline = match document.engine(report) {
        Some(engine) => format!("{engine}: {}", document.headline),
        None => document.headline.clone(),
    };
    page.wrapped(&first, "  ", &headline, Style::new());
    if let Some(brief) = document.brief(report, around) {
        page.labelled(&brief.before);
        if let Some(matrix) = brief.matrix {
            page.small(matrix, brief.more);
        }
        page.labelled(&brief.after);
    } else {
        page.labelled(&document.reach(report));
    }
    if let Some(section) = document.about(Topic::Smallest) {
        for block in &section.blocks {
            if let Block::Command(command) = block {
                page.labelled(&[Fact::new("smallest", command)]);
            }
        }
    }
    if let Some(own) = around.own_engine {
        page.labelled(&[Fact::new("note", own)]);
    }
    page.wrapped("", "", "", Style::new());
    if page.lines() + LAST_LINES > SCREEN {
        // The first line has left the screen.
        page.wrapped(&first, "  ", &headline, Style::new());
    }
    if let Some(next) = document.next(report, around) {
        page.wrapped("", "  ", &next, BOLD);
    }
    page.again(around.again.or(document.again).filter(|_| !document.findings.is_empty()));
    Ok(page.into_text())
}

impl TerminalPage {
    /// Writes facts with their labels in the margin.
    fn labelled(&mut self, facts: &[Fact]) {
        for fact in facts {
            let mut first = format!("{BOLD}{:<MARGIN$}{BOLD:#}", fact.label);
            for said in &fact.said {
                self.wrapped(&first, &" ".repeat(MARGIN), said.text(), Style::new());
                first = " ".repeat(MARGIN);
            }
        }
    }

    /// Writes a matrix with its place, if the matrix fits on the screen; `more` is the number of other matrices.
    fn small(&mut self, matrix: &Matrix, more: usize) {
        let fits = |table: &&Table| {
            table.head.len() <= 1 + MATRIX_COLUMNS && table.rows.len() <= MATRIX_ROWS
        };
        let Some(table) = matrix.table.as_ref().filter(fits) else { return };
        if self.indented(table) {
            let others = match more {
                0 => String::new(),
                more => format!("; {}: zprobe show -v", amount(more, "more table")),
            };
            let place = format!("{}{others}", matrix.place);
            let margin = " ".repeat(MARGIN);
            self.wrapped(&margin, &margin, &place, DIM);
            matrix.notes.iter().for_each(|note| self.wrapped(&margin, &margin, note, DIM));
        }
    }
}
