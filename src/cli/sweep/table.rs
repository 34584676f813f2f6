//! The table of a sweep, in each of its forms.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Value, json};
use zprobe::lattice::Configuration;
use zprobe::lattice::outcome::{Class, Ending, group};
use zprobe::report::words::amount;

use super::plan::Plan;
use super::run::Done;
use super::{Args, Form};

/// How many ways to come to an outcome a cell lists.
const LISTED: usize = 12;

/// What would be run.
pub fn list(plan: &Plan, form: Form) -> Result<String> {
    if form == Form::Json {
        let rows: Vec<Value> = plan.chosen.iter().map(row).collect();
        return to_json(&json!({ "rows": rows, "excluded": excluded_json(plan) }));
    }
    let head = ["part", "configuration", "command"];
    let rows = plan.chosen.iter().map(|it| vec![it.part.to_string(), it.label(), command(it)]);
    Ok(table(form, &head, rows) + &excluded(plan) + &plan.summary() + "\n")
}

/// What was run, and what came of it.
pub fn results(plan: &Plan, results: &[Done], args: &Args) -> Result<String> {
    let versions: BTreeMap<_, _> =
        results.iter().flat_map(|done| done.versions.iter().cloned()).collect();
    let not_tried = plan.chosen.len() - results.len();
    if args.output_format == Form::Json {
        let rows: Vec<Value> = results.iter().map(result).collect();
        return to_json(&json!({
            "engine": args.engine,
            "versions": versions,
            "steps": args.steps,
            "chosen": plan.chosen.len(),
            "not_tried": not_tried,
            "excluded": excluded_json(plan),
            "rows": rows,
        }));
    }
    let pairs: Vec<_> =
        results.iter().map(|it| (it.configuration.clone(), it.outcome.clone())).collect();
    let clean = pairs.iter().filter(|(_, outcome)| outcome.ending == Ending::Clean).count();
    let mut rows = Vec::new();
    for group in group(&pairs) {
        if group.outcome.ending == Ending::Clean {
            continue;
        }
        for class in &group.classes {
            let Some(smallest) = smallest(class) else { continue };
            rows.push(vec![
                group.outcome.words(),
                class.bases.join("; "),
                with(class),
                class.members.len().to_string(),
                format!("`{}`", command(smallest)),
            ]);
        }
    }
    let mut text = String::new();
    if !rows.is_empty() {
        let head = ["outcome", "where", "with", "rows", "for example"];
        text += &table(args.output_format, &head, rows.into_iter());
        text += "\n";
    }
    let software: Vec<String> =
        versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let _ = writeln!(text, "{clean} of {} clean", amount(results.len(), "configuration"));
    let _ = writeln!(text, "{}", software.join(", "));
    text += &excluded(plan);
    if not_tried > 0 {
        let _ = writeln!(text, "{} not tried", amount(not_tried, "configuration"));
    }
    Ok(text)
}

/// The fewest additions, and how many more there are.
fn with(class: &Class<'_>) -> String {
    if class.with.is_empty() {
        return "nothing else".to_owned();
    }
    let distinct: BTreeSet<&String> = class.with.iter().collect();
    let mut text = class.with.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if distinct.len() > LISTED {
        let _ = write!(text, "; and {} more", distinct.len() - LISTED);
    }
    text
}

/// The configuration with the fewest arguments.
fn smallest<'a>(class: &Class<'a>) -> Option<&'a Configuration> {
    class.members.iter().min_by_key(|it| it.arguments().len()).copied()
}

/// What to type.
fn command(configuration: &Configuration) -> String {
    format!("zprobe run {}", configuration.arguments().join(" "))
}

fn row(configuration: &Configuration) -> Value {
    json!({
        "configuration": configuration.label(),
        "base": configuration.base_label(),
        "part": configuration.part,
        "command": command(configuration),
    })
}

fn result(done: &Done) -> Value {
    let mut object = row(&done.configuration);
    object["ending"] = json!(done.outcome.ending);
    object["codes"] = json!(done.outcome.codes);
    object["message"] = json!(done.outcome.message);
    object["optimizer_class"] = json!(done.outcome.optimizer_class);
    object["seconds"] = json!((done.took.as_secs_f64() * 100.0).round() / 100.0);
    object["run_dir"] = json!(done.dir);
    object
}

/// Why configurations are left out.
fn excluded(plan: &Plan) -> String {
    let mut text = String::new();
    for (reason, (count, example)) in &plan.excluded {
        let _ = writeln!(
            text,
            "{} left out, like `{}`: {reason}",
            amount(*count, "configuration"),
            command(example)
        );
    }
    text
}

fn excluded_json(plan: &Plan) -> Value {
    let rows = plan.excluded.iter().map(|(reason, (count, example))| {
        json!({ "reason": reason, "count": count, "example": command(example) })
    });
    rows.collect()
}

fn to_json(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn table(form: Form, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
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
