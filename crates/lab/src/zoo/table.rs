//! The tables of the zoo, in each of their forms.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::rows::ZooCase;
use super::run::ZooOutcome;
use crate::limits::CANNOT_RUN;
use crate::queue::NotStarted;
use crate::table::{grid, to_json};
use zprobe_report::Form;
use zprobe_report::words::amount;
use zprobe_zoo::ZooRow;

/// The table of the cases that would be tried.
pub fn list(cases: &[ZooCase<'_>], form: Form) -> Result<String> {
    if form == Form::Json {
        return to_json(&cases.iter().map(case_json).collect::<Vec<_>>());
    }
    let head = ["row", "release", "expected"];
    Ok(grid(form, &head, cases.iter().map(|case| case_cells(case).to_vec())))
}

/// The table of the cases that were tried, with their outcomes.
pub fn outcomes(cases: &[ZooCase<'_>], outcomes: &[ZooOutcome], form: Form) -> Result<String> {
    let both = || cases.iter().zip(outcomes);
    if form == Form::Json {
        let objects = both().map(|(case, outcome)| {
            let mut object = case_json(case);
            object["got"] = json!(outcome.got);
            // A skipped case is neither as expected nor unexpected.
            let ok = outcome.skipped.is_none().then_some(outcome.ok);
            object["ok"] = json!(ok);
            object["skipped"] = json!(outcome.skipped);
            object["run_dir"] = json!(outcome.dir);
            object
        });
        return to_json(&objects.collect::<Vec<_>>());
    }
    let head = ["row", "release", "expected", "got", "ok"];
    let mut text = grid(
        form,
        &head,
        both().map(|(case, outcome)| {
            let mut cells = case_cells(case).to_vec();
            cells.extend([outcome.got.clone(), outcome.word().to_owned()]);
            cells
        }),
    );
    for (reason, count) in skipped(outcomes) {
        let before = if form == Form::Markdown { "\n" } else { "" };
        let _ = writeln!(text, "{before}skipped {}: {CANNOT_RUN}: {reason}", amount(count, "run"));
    }
    if form == Form::Markdown {
        stories(&mut text, cases);
    } else {
        let expected = outcomes.iter().filter(|outcome| outcome.ok).count();
        let not_tried: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.not_tried).collect();
        let skipped = outcomes.iter().filter(|outcome| outcome.skipped.is_some()).count();
        let made = outcomes.len() - skipped - not_tried.len();
        let _ = write!(text, "{expected} of {made} as expected");
        if let Some(reason) = not_tried.first() {
            let why = match reason {
                NotStarted::Interrupted => "interrupted",
                NotStarted::AfterFailure => "--fail-fast",
                NotStarted::TimeIsUp => "time was up",
            };
            let _ = write!(text, ", {} not tried: {why}", not_tried.len());
        }
        text.push('\n');
    }
    Ok(text)
}

/// The number of skipped runs for each reason.
fn skipped(outcomes: &[ZooOutcome]) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for reason in outcomes.iter().filter_map(|outcome| outcome.skipped.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}

fn case_cells(case: &ZooCase<'_>) -> [String; 3] {
    [case.row.name.clone(), case.release.label(), case.release.expect.to_string()]
}

fn case_json(case: &ZooCase<'_>) -> Value {
    json!({
        "row": case.row.name,
        "title": case.row.title,
        "engine": case.row.engine,
        "packages": case.release.packages,
        "run": case.row.arguments(case.release).collect::<Vec<_>>(),
        "command": case.row.command(),
        "expected": case.release.expect.to_string(),
    })
}

/// Appends the story of each row, below the table.
fn stories(text: &mut String, cases: &[ZooCase<'_>]) {
    let mut shown: Vec<&str> = Vec::new();
    for ZooCase { row, .. } in cases {
        if !shown.contains(&row.name.as_str()) {
            shown.push(&row.name);
            text.push_str(&story(row));
        }
    }
}

fn story(row: &ZooRow) -> String {
    let links: String = row.links.iter().map(|link| format!(" <{link}>")).collect();
    format!(
        "\n## {}\n\n{}.{links}\n\n{}\n\nCause: {}\n\nWhat to do: {}\n\n    {}\n",
        row.name,
        row.title,
        row.summary,
        row.cause,
        row.workaround,
        row.command(),
    )
}
