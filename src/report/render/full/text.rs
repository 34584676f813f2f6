//! Words on a terminal: styles, headings, wrapped paragraphs, tables.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::report::Verdict;

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

/// A report as far as it is written, for a terminal of some width.
pub(in crate::report::render) struct Page {
    text: String,
    width: usize,
}

impl Page {
    /// An empty page.
    pub fn new(width: usize) -> Self {
        Self { text: String::new(), width }
    }

    /// The text that was written.
    pub fn into_text(self) -> String {
        self.text
    }

    pub fn section(&mut self, title: &str) {
        let _ = writeln!(self);
        self.wrapped("", "  ", title, BOLD);
    }

    /// Writes a paragraph that begins with `lead` and hangs under its second column.
    pub fn paragraph(&mut self, lead: &str, body: &str) {
        let indent = lead.len() - lead.trim_start().len();
        let first = format!("  {}", &lead[..indent]);
        self.wrapped(&first, "    ", &format!("{lead}{body}"), Style::new());
    }

    /// Writes a quotation, which keeps its lines.
    pub fn quotation(&mut self, quoted: &str) {
        for line in quoted.lines() {
            self.wrapped("    | ", "    | ", line, DIM);
        }
    }

    /// Wraps `text`, whose first line begins with `first`, which may be in colour, and all others
    /// with `next`.
    pub fn wrapped(&mut self, first: &str, next: &str, text: &str, style: Style) {
        let columns = |lead: &str| anstream::adapter::strip_str(lead).to_string().chars().count();
        let room = |lead: &str| self.width.saturating_sub(columns(lead)).max(1);
        let mut lines: Vec<String> = Vec::new();
        let mut left = room(first);
        if columns(first) >= self.width {
            // `first` stands alone in its line.
            lines.push(String::new());
            left = 0;
        }
        for word in text.split_whitespace() {
            // A path, for example, that is wider than the page goes on in the next line.
            let mut rest: Vec<char> = word.chars().collect();
            if let Some(line) = lines.last_mut().filter(|_| rest.len() < left) {
                line.push(' ');
                line.extend(&rest);
                left -= rest.len() + 1;
                continue;
            }
            while !rest.is_empty() {
                left = room(if lines.is_empty() { first } else { next });
                let tail = rest.split_off(rest.len().min(left));
                left -= rest.len();
                lines.push(rest.into_iter().collect());
                rest = tail;
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
        for (at, line) in lines.iter().enumerate() {
            let lead = if at == 0 { first } else { next };
            let _ = writeln!(self, "{style}{}{style:#}", format_args!("{lead}{line}"));
        }
    }

    /// Writes a table; all but the first `left` columns are aligned to the right.
    pub fn table(&mut self, table: Table, left: usize) {
        let lines = lines(table, left, Some(self.width));
        self.text.extend(lines);
    }

    /// Writes a table with an indent. None, and nothing written, where it is too wide for the page.
    pub fn indented(&mut self, table: Table, left: usize) -> Option<()> {
        let lines: Vec<String> =
            lines(table, left, None).map(|line| format!("    {line}")).collect();
        let fits = lines.iter().all(|line| line.trim_end().chars().count() <= self.width);
        fits.then(|| self.text.extend(lines))
    }
}

impl std::fmt::Write for Page {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.text.push_str(text);
        Ok(())
    }
}

/// A table without lines, headed by `header`.
pub(super) fn table(header: impl IntoIterator<Item = impl Into<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.into_iter().map(Into::into));
    table
}

/// Lines of a table, its cells wrapped where it would be wider than `width`.
fn lines(mut table: Table, left: usize, width: Option<usize>) -> impl Iterator<Item = String> {
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width - 1).unwrap_or(u16::MAX));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let alignment = if index < left { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
    }
    let lines: Vec<String> = table.lines().map(|line| format!(" {}\n", line.trim_end())).collect();
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_wider_than_the_page_goes_on_in_the_next_line() {
        let mut page = Page::new(20);
        page.paragraph("see: ", "https://example.org/a/long/path and more");
        assert_eq!(
            page.into_text(),
            "  see:\n    https://example.\n    org/a/long/path\n    and more\n"
        );
    }

    #[test]
    fn a_quotation_keeps_its_lines() {
        let mut page = Page::new(20);
        page.quotation("red\n\nlast words of a rank");
        let text = anstream::adapter::strip_str(&page.into_text()).to_string();
        assert_eq!(text, "    | red\n    | \n    | last words of\n    | a rank\n");
    }
}
