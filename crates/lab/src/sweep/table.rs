//! The table of a single sweep, in each of its forms.

use std::fmt::Write as _;

use crate::lattice::Configuration;
use crate::lattice::group::{ConfigurationClass, group};
use crate::lattice::outcome::{Refused, Sweep, SweepEnding, SweepOutcome};
use anyhow::Result;
use serde_json::{Value, json};
use zprobe_report::Form;
use zprobe_report::words::amount;

use super::plan::SweepPlan;
use crate::console::Verbosity;
use crate::table::{ListEntry, entries, grid, to_json, wrapped};

/// Largest number of additions that a cell lists.
const LISTED: usize = 16;

/// The list of the configurations that would be run; `surroundings` are arguments that are added to the commands of a
/// list for the terminal.
pub fn list(plan: &SweepPlan, form: Form, surroundings: &[String]) -> Result<String> {
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
        entries(plan.chosen.iter().map(|it| ListEntry {
            title: format!("{}: {}", it.part, it.label()),
            facts: vec![],
            command: it.command_with(surroundings),
        }))
    };
    Ok(table + &refused(&plan.refused, form) + &plan.summary() + "\n")
}

/// The table of the outcomes that are not clean: one line for each kind of configuration with equal outcomes.
/// `surroundings` are arguments that are added to the commands of a table for the terminal.
pub fn table(sweep: &Sweep, form: Form, surroundings: &[String]) -> Result<String> {
    if form == Form::Json {
        return to_json(sweep);
    }
    let bad = sweep.rows.iter().filter(|row| row.outcome.ending != SweepEnding::Clean);
    let groups = group(bad.map(|row| (&row.configuration, Same(&row.outcome))));
    let classes = || groups.iter().flat_map(|it| it.classes.iter().map(|class| (it.what.0, class)));
    let mut text = if form == Form::Markdown && !groups.is_empty() {
        let rows = classes().map(|(what, class)| {
            let (bases, count) = (class.bases.join("; "), class.members.len().to_string());
            vec![outcome(what, form), bases, with(class), count, code(&smallest(class, &[]), form)]
        });
        grid(form, &["outcome", "where", "with", "rows", "for example"], rows)
    } else {
        entries(classes().map(|(what, class)| ListEntry {
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
    let (clean, skipped) = (count(SweepEnding::Clean), count(SweepEnding::Skipped));
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
    Ok(text + &refused(&sweep.refused, form))
}

/// An outcome that equals another outcome if they differ only in numbers in the engine's words.
struct Same<'a>(&'a SweepOutcome);

impl PartialEq for Same<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

/// An outcome, followed by the engine's own words if there are any.
fn outcome(outcome: &SweepOutcome, form: Form) -> String {
    match outcome.own_words() {
        Some(words) => format!("{}: {}", outcome.words(), code(words, form)),
        None => outcome.words(),
    }
}

/// The fewest additions that lead to an outcome: at most `LISTED` of them, and the number of the others.
pub fn with(class: &ConfigurationClass<'_>) -> String {
    if class.with.is_empty() {
        return "nothing else".to_owned();
    }
    let mut text = class.with.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if class.with.len() > LISTED {
        let _ = write!(text, "; and {} more", class.with.len() - LISTED);
    }
    text
}

/// The configurations of a class, as facts for a [`ListEntry`].
pub fn places(class: &ConfigurationClass<'_>) -> Vec<(String, String)> {
    vec![("where".to_owned(), class.bases.join("; ")), ("with".to_owned(), with(class))]
}

/// The command of the smallest configuration of a class, with the arguments `surroundings`.
pub fn smallest(class: &ConfigurationClass<'_>, surroundings: &[String]) -> String {
    class.smallest().map(|it| it.command_with(surroundings)).unwrap_or_default()
}

/// A text that a user typed or a program printed, formatted as code.
pub fn code(text: &str, form: Form) -> String {
    if form == Form::Markdown {
        // In a cell, a bar would end the cell, and a backtick would end the code.
        format!("`{}`", text.replace('|', "¦").replace('`', "'"))
    } else {
        text.to_owned()
    }
}

/// The versions of the packages that the sweep used.
fn versions(sweep: &Sweep) -> String {
    let versions = sweep.versions.iter().map(|(name, version)| format!("{name} {version}"));
    versions.collect::<Vec<_>>().join(", ")
}

/// Lines with the reasons why configurations are left out, each with an example. Without `--verbose`, a terminal shows
/// only the counts of the configurations and the reasons.
fn refused(refused: &[Refused], form: Form) -> String {
    let mut text = String::new();
    if form != Form::Markdown && !Verbosity::get().verbose {
        let count: usize = refused.iter().map(|refused| refused.count).sum();
        if count > 0 {
            let (count, reasons) =
                (amount(count, "configuration"), amount(refused.len(), "reason"));
            let line = format!("{count} left out, for {reasons}: -v shows the reasons");
            let _ = writeln!(text, "{}", wrapped(&line, "", "  "));
        }
        return text;
    }
    for Refused { reason, count, example } in refused {
        let count = amount(*count, "configuration");
        let _ = writeln!(text, "{}", wrapped(&format!("{count} left out: {reason}"), "", "  "));
        let _ = writeln!(text, "  {example}");
    }
    text
}
