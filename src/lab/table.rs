//! Tables of what came of an experiment.

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};

use crate::report::Form;
use crate::visible;

/// A table with these columns.
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

/// A document for programs.
pub fn to_json(value: &impl serde::Serialize) -> Result<String> {
    Ok(visible::json(value)?)
}
