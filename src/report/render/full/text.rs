//! Words on a terminal: styles, headings, wrapped paragraphs, tables.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, presets};

use crate::report::Verdict;

/// Width that fits every terminal.
const WIDTH: usize = 80;

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

pub(super) fn section(text: &mut String, title: &str) {
    let _ = writeln!(text, "\n{BOLD}{title}{BOLD:#}");
}

/// Wraps `body` at the width, hanging under the end of `lead`.
pub(in crate::report::render) fn paragraph(text: &mut String, lead: &str, body: &str) {
    let indent = "  ";
    let mut line = format!("{indent}{lead}");
    let hanging = indent.len() + 2;
    let mut empty = true;
    for word in body.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(hanging);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    let _ = writeln!(text, "{line}");
}

/// A table without lines, headed by `header`.
pub(super) fn table(header: impl IntoIterator<Item = impl Into<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.into_iter().map(Into::into));
    table
}

/// A table's text; all but the first `left` columns are aligned to the right.
pub(super) fn finish(mut table: Table, left: usize) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        let alignment = if index < left { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
    }
    table.lines().map(|line| format!(" {}\n", line.trim_end())).collect()
}

/// A line that is too long for the terminal, in several; a word that is too long stays as it is.
pub(super) fn wrapped(line: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= WIDTH => {
                last.push(' ');
                last.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
