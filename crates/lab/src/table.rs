//! Tables and lists for the results of experiments.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};

use crate::console::{columns, terminal_columns};
use zprobe_model::visible;
use zprobe_report::Form;

/// A table with the columns `head`, as Markdown or for the terminal.
pub fn grid(form: Form, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    if form == Form::Markdown {
        table.load_style(presets::ASCII_MARKDOWN);
    } else {
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(head).add_rows(rows);
    let lines = table.to_string();
    lines.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// An entry of a list for people: a title, labelled facts, and a command that is not wrapped, because users copy it.
pub struct ListEntry {
    /// The title of the entry.
    pub title: String,
    /// The facts, each with a label of one word and its text.
    pub facts: Vec<(String, String)>,
    /// The command of the entry.
    pub command: String,
}

/// The entries one below the other, no wider than the terminal except for their commands.
pub fn entries(entries: impl IntoIterator<Item = ListEntry>) -> String {
    let mut text = String::new();
    for ListEntry { title, facts, command } in entries {
        let _ = writeln!(text, "{}", wrapped(&title, "", "  "));
        let width = facts.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
        for (label, fact) in facts {
            let first = format!("  {label:width$}  ");
            let _ = writeln!(text, "{}", wrapped(&fact, &first, &" ".repeat(first.len())));
        }
        let _ = writeln!(text, "  {command}");
    }
    text
}

/// The end of a line that is cut to fit on the terminal.
pub const CUT: &str = " …";

/// Names with their descriptions in two columns. On a terminal, a line that is too wide ends with [`CUT`]; if
/// `is_whole`, it continues on further lines.
pub fn in_columns<'a>(
    entries: impl IntoIterator<Item = (&'a str, &'a str)>,
    is_whole: bool,
) -> String {
    let entries: Vec<(&str, &str)> = entries.into_iter().collect();
    let width = entries.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let columns = terminal_columns().unwrap_or(usize::MAX);
    let line = |(name, about): (&str, &str)| {
        let (first, next) = (format!("{name:width$}  "), " ".repeat(width + 2));
        let text = within(columns, about, &first, &next);
        if is_whole || !text.contains('\n') {
            return text + "\n";
        }
        let text = within(columns - CUT.chars().count(), about, &first, &next);
        text.lines().take(1).map(|line| format!("{line}{CUT}\n")).collect()
    };
    entries.into_iter().map(line).collect()
}

/// A line, cut with [`CUT`] if it is wider than this number of columns.
pub fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let kept = line.chars().take(columns.saturating_sub(CUT.chars().count()));
    kept.collect::<String>() + CUT
}

/// The words of a text with the indents `first` and `next`: in one line, or in lines no wider than the terminal if
/// standard output is one.
pub fn on_terminal(text: &str, first: &str, next: &str) -> String {
    within(terminal_columns().unwrap_or(usize::MAX), text, first, next)
}

/// The words of a text in lines no wider than the terminal, with the indents `first` and `next`.
pub fn wrapped(text: &str, first: &str, next: &str) -> String {
    within(columns(), text, first, next)
}

fn within(columns: usize, text: &str, first: &str, next: &str) -> String {
    let options = textwrap::Options::new(columns)
        .initial_indent(first)
        .subsequent_indent(next)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

/// A value as JSON, for other programs.
pub fn to_json(value: &impl serde::Serialize) -> Result<String> {
    Ok(visible::json(value)?)
}
