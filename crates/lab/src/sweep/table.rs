//! The table of one sweep, in each of its forms.

use std::fmt::Write as _;

use crate::lattice::Configuration;
use crate::lattice::group::{Class, group};
use crate::lattice::outcome::{Ending, Outcome, Refused, Sweep};
use anyhow::Result;
use serde_json::{Value, json};
use zprobe_report::Form;
use zprobe_report::words::amount;

use super::plan::Plan;
use crate::table::{Entry, entries, grid, to_json, wrapped};

/// Most additions that a cell lists as ways to come to an outcome.
const LISTED: usize = 16;

/// The configurations that would be run; `surroundings` are arguments that commands for reading have too.
pub fn list(plan: &Plan, form: Form, surroundings: &[String]) -> Result<String> {
    if form == Form::Json {
        let rows: Vec<Value> = plan
            .chosen
            .iter()
            .map(|it| json!({"label": it.label(), "part": it.part, "command": it.command()}))
            .collect();
        return to_json(&json!({ "rows": rows, "refused": plan.refused }));
    }
    let table = if form == Form::Markdown {
        let row = |it: &Configuration| vec![it.part.to_string(), it.label(), it.command()];
        grid(form, &["part", "configuration", "command"], plan.chosen.iter().map(row))
    } else {
        entries(plan.chosen.iter().map(|it| Entry {
            title: format!("{}: {}", it.part, it.label()),
            facts: vec![],
            command: it.command_with(surroundings),
        }))
    };
    Ok(table + &refused(&plan.refused) + &plan.summary() + "\n")
}

/// The configurations that were run, and their outcomes: equal ones in one line for each kind of
/// configuration. `surroundings` are arguments that commands for reading have too.
pub fn table(sweep: &Sweep, form: Form, surroundings: &[String]) -> Result<String> {
    if form == Form::Json {
        return to_json(sweep);
    }
    let bad = sweep.rows.iter().filter(|row| row.outcome.ending != Ending::Clean);
    let groups = group(bad.map(|row| (&row.configuration, Same(&row.outcome))));
    let classes = || groups.iter().flat_map(|it| it.classes.iter().map(|class| (it.what.0, class)));
    let mut text = if form == Form::Markdown && !groups.is_empty() {
        let rows = classes().map(|(what, class)| {
            let (bases, count) = (class.bases.join("; "), class.members.len().to_string());
            vec![outcome(what, form), bases, with(class), count, code(&smallest(class, &[]), form)]
        });
        grid(form, &["outcome", "where", "with", "rows", "for example"], rows)
    } else {
        entries(classes().map(|(what, class)| Entry {
            title: format!(
                "{}: {}",
                amount(class.members.len(), "configuration"),
                outcome(what, form)
            ),
            facts: places(class),
            command: smallest(class, surroundings),
        }))
    };
    if !text.is_empty() {
        text.push('\n');
    }
    let count = |ending| sweep.rows.iter().filter(|row| row.outcome.ending == ending).count();
    let (clean, skipped) = (count(Ending::Clean), count(Ending::Skipped));
    let made = amount(sweep.rows.len() - skipped, "configuration");
    let mut ending = format!("{clean} of {made} clean");
    if skipped > 0 {
        let _ = write!(ending, ", {skipped} skipped");
    }
    if sweep.not_tried > 0 {
        let _ = write!(ending, ", {} not tried", sweep.not_tried);
    }
    let _ = write!(ending, ": {}", versions(sweep));
    let _ = writeln!(text, "{}", wrapped(&ending, "", "  "));
    Ok(text + &refused(&sweep.refused))
}

/// An outcome that equals another one if they differ in nothing but numbers in the engine's words.
struct Same<'a>(&'a Outcome);

impl PartialEq for Same<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

/// An outcome with the engine's own words.
fn outcome(outcome: &Outcome, form: Form) -> String {
    match outcome.own_words() {
        Some(words) => format!("{}: {}", outcome.words(), code(words, form)),
        None => outcome.words(),
    }
}

/// The fewest additions that lead to an outcome, at most `LISTED` of them, and the number of
/// others.
pub fn with(class: &Class<'_>) -> String {
    if class.with.is_empty() {
        return "nothing else".to_owned();
    }
    let mut text = class.with.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if class.with.len() > LISTED {
        let _ = write!(text, "; and {} more", class.with.len() - LISTED);
    }
    text
}

/// The configurations of a class, as facts of an entry.
pub fn places(class: &Class<'_>) -> Vec<(String, String)> {
    vec![("where".to_owned(), class.bases.join("; ")), ("with".to_owned(), with(class))]
}

/// The command of the smallest configuration in these surroundings.
pub fn smallest(class: &Class<'_>, surroundings: &[String]) -> String {
    class.smallest().map(|it| it.command_with(surroundings)).unwrap_or_default()
}

/// Text that a user typed or a program said, as code.
pub fn code(text: &str, form: Form) -> String {
    if form == Form::Markdown {
        // A bar would end the cell, and a backtick the code.
        format!("`{}`", text.replace('|', "¦").replace('`', "'"))
    } else {
        text.to_owned()
    }
}

/// Versions of what ran.
fn versions(sweep: &Sweep) -> String {
    let versions = sweep.versions.iter().map(|(name, version)| format!("{name} {version}"));
    versions.collect::<Vec<_>>().join(", ")
}

/// Lines with the reasons why configurations are left out.
fn refused(refused: &[Refused]) -> String {
    let mut text = String::new();
    for Refused { reason, count, example } in refused {
        let count = amount(*count, "configuration");
        let _ = writeln!(text, "{}", wrapped(&format!("{count} left out: {reason}"), "", "  "));
        let _ = writeln!(text, "  {example}");
    }
    text
}
