//! Writes a text for a terminal or as Markdown.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use zprobe_report::render::markdown::{block, escaped};
use zprobe_report::words::one_line;

/// A text that is written section by section.
pub struct ComparisonPage {
    is_markdown: bool,
    text: String,
}

impl ComparisonPage {
    /// An empty page for a terminal.
    pub fn plain() -> Self {
        Self { is_markdown: false, text: String::new() }
    }

    /// An empty page in Markdown, as GitHub shows it.
    pub fn markdown() -> Self {
        Self { is_markdown: true, text: String::new() }
    }

    /// The text that was written so far.
    pub fn text(self) -> String {
        self.text
    }

    /// Writes the headline above all sections.
    pub fn headline(&mut self, text: &str) {
        if self.is_markdown {
            let _ = writeln!(self.text, "## zprobe compare: {}\n", escaped(text));
        } else {
            let _ = writeln!(self.text, "{}", one_line(text));
        }
    }

    /// Writes the title of a section.
    pub fn title(&mut self, text: &str) {
        if self.is_markdown {
            let _ = writeln!(self.text, "\n### {}\n", escaped(text));
        } else {
            let _ = writeln!(self.text, "\n{text}");
        }
    }

    /// Writes a line.
    pub fn line(&mut self, text: &str) {
        if self.is_markdown {
            let _ = writeln!(self.text, "- {}", escaped(text));
        } else {
            let _ = writeln!(self.text, "  {}", one_line(text));
        }
    }

    /// Writes a table: a header, then the rows. All columns but the first are right-aligned.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let mut table = Table::new();
        let preset = if self.is_markdown { presets::ASCII_MARKDOWN } else { presets::NOTHING };
        table.load_style(preset);
        table.set_header(head);
        for row in rows {
            let cell = |cell: &String| if self.is_markdown { escaped(cell) } else { cell.clone() };
            table.add_row(row.iter().map(cell));
        }
        if !self.is_markdown {
            for column in 1..head.len() {
                if let Some(column) = table.column_mut(column) {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        let indent = if self.is_markdown { "" } else { "  " };
        for line in table.to_string().lines() {
            let _ = writeln!(self.text, "{indent}{}", line.trim_end());
        }
        if self.is_markdown {
            self.text.push('\n');
        }
    }

    /// Writes lines verbatim, as a block of code.
    pub fn code(&mut self, text: &str) {
        if self.is_markdown {
            let _ = write!(self.text, "\n{}", block("", text));
        } else {
            for line in text.lines() {
                let _ = writeln!(self.text, "    {}", line.trim_end());
            }
        }
    }
}
