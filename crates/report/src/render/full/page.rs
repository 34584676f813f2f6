//! Lays out text for a terminal: styles, headings, wrapped paragraphs and tables.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, ContentArrangement, presets};
use textwrap::{Options, WordSeparator, WordSplitter};

use crate::Verdict;
use crate::document::{Table, TableCell};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();

pub(super) fn verdict_style(verdict: Verdict) -> Style {
    let color = match verdict {
        Verdict::Clean => AnsiColor::Green,
        Verdict::Findings | Verdict::Crashed => AnsiColor::Red,
        Verdict::Inconclusive => AnsiColor::Yellow,
    };
    Style::new().bold().fg_color(Some(color.into()))
}

/// The text of a report that has been written so far, for a terminal of a certain width in columns.
pub(in crate::render) struct TerminalPage {
    text: String,
    width: usize,
}

impl TerminalPage {
    /// Makes an empty page for a terminal of this width in columns.
    pub fn new(width: usize) -> Self {
        Self { text: String::new(), width }
    }

    /// The number of lines that were written to the page.
    pub fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// The text that was written to the page.
    pub fn into_text(self) -> String {
        self.text
    }

    pub fn section(&mut self, title: &str) {
        let _ = writeln!(self);
        self.wrapped("", "  ", title, BOLD);
    }

    /// Writes a paragraph that begins with `lead`; its other lines are indented by four columns.
    pub fn paragraph(&mut self, lead: &str, body: &str) {
        let indent = lead.len() - lead.trim_start().len();
        let first = format!("  {}", &lead[..indent]);
        self.wrapped(&first, "    ", &format!("{lead}{body}"), Style::new());
    }

    /// Writes a quotation and keeps its line breaks.
    pub fn quotation(&mut self, quoted: &str) {
        for line in quoted.lines() {
            self.wrapped("    | ", "    | ", line, DIM);
        }
    }

    /// Writes `text` as wrapped lines. The first line begins with `first`, which may contain styles; all others begin
    /// with `next`.
    pub fn wrapped(&mut self, first: &str, next: &str, text: &str, style: Style) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let options = Options::new(self.width).initial_indent(first).subsequent_indent(next);
        // Addresses and paths are only broken if they are wider than a line.
        let options = options.word_separator(WordSeparator::AsciiSpace);
        let options = options.word_splitter(WordSplitter::NoHyphenation);
        let mut lines = textwrap::wrap(&text, options);
        if text.is_empty() {
            lines = vec![first.into()];
        }
        for line in lines {
            let _ = writeln!(self, "{style}{line}{style:#}");
        }
    }

    /// Writes a table; cells are wrapped if the table would be wider than the page.
    pub fn table(&mut self, table: &Table) {
        self.text.extend(lines(table, Some(self.width)));
    }

    /// Writes a table with an indent. If the table is too wide for the page, returns false and writes nothing.
    pub fn indented(&mut self, table: &Table) -> bool {
        let lines: Vec<String> =
            lines(table, None).into_iter().map(|line| format!("    {line}")).collect();
        let columns = |line: &String| textwrap::core::display_width(line.trim_end());
        let fits = lines.iter().all(|line| columns(line) <= self.width);
        if fits {
            self.text.extend(lines);
        }
        fits
    }
}

impl std::fmt::Write for TerminalPage {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.text.push_str(text);
        Ok(())
    }
}

/// The lines of a table, at most `width` columns wide.
fn lines(table: &Table, width: Option<usize>) -> Vec<String> {
    let mut grid = comfy_table::Table::new();
    grid.load_style(presets::NOTHING).set_header(&table.head);
    let marked = |(index, cell): (usize, &TableCell)| match cell.is_wrong && index >= table.left {
        true => format!("[{}]", cell.text),
        false => cell.text.clone(),
    };
    grid.add_rows(table.rows.iter().map(|row| row.iter().enumerate().map(marked)));
    if let Some(width) = width {
        grid.set_content_arrangement(ContentArrangement::Dynamic);
        grid.set_width(u16::try_from(width - 1).unwrap_or(u16::MAX));
    }
    for (index, column) in grid.column_iter_mut().enumerate() {
        let left = index < table.left;
        column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
    }
    let has_wrong = |row: &Vec<TableCell>| row[table.left..].iter().any(|cell| cell.is_wrong);
    let colour = table.rows.iter().any(has_wrong);
    let line = |line: String| match colour {
        true => format!(" {}\n", in_colour(line.trim_end())),
        false => format!(" {}\n", line.trim_end()),
    };
    grid.lines().map(line).collect()
}

/// The line with the colour of a finding for every text in square brackets.
fn in_colour(line: &str) -> String {
    let style = verdict_style(Verdict::Findings);
    line.replace('[', &format!("{style}[")).replace(']', &format!("]{style:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_wider_than_the_page_goes_on_in_the_next_line() {
        let mut page = TerminalPage::new(20);
        page.paragraph("see: ", "https://example.org/a/long/path and more");
        assert_eq!(
            page.into_text(),
            "  see:\n    https://example.\n    org/a/long/path\n    and more\n"
        );
    }

    #[test]
    fn a_quotation_keeps_its_lines() {
        let mut page = TerminalPage::new(20);
        page.quotation("red\n\nlast words of a rank");
        let text = anstream::adapter::strip_str(&page.into_text()).to_string();
        assert_eq!(text, "    | red\n    | \n    | last words of\n    | a rank\n");
    }
}
