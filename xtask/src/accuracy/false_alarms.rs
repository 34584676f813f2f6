//! False alarms: findings on random runs of correct engines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Subject;
use super::bound::upper;

/// The number of runs with each outcome.
#[derive(Default)]
struct Counts {
    clean: usize,
    /// Runs whose findings are all known bugs of the release.
    known: usize,
    /// Runs with any other finding.
    findings: usize,
    /// Runs that crashed or were inconclusive, so that zprobe was neither right nor wrong.
    silent: usize,
    /// Runs that this machine cannot make.
    skipped: usize,
}

/// The section of the accuracy page about false alarms.
pub fn table(results: &[(&Subject, PathBuf)]) -> Result<String> {
    let mut text = String::from(
        "| engine | dtype | runs | clean | known bug | no answer | not run | other findings | rate, at most |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let (mut all, mut lists) = (Counts::default(), String::new());
    for (subject, path) in results {
        let sweep = read(path)?;
        let rows = sweep["rows"].as_array().context("the sweep has no rows")?;
        let mut by_dtype: BTreeMap<String, Counts> = BTreeMap::new();
        let mut others: BTreeSet<String> = BTreeSet::new();
        for row in rows {
            let outcome = &row["outcome"];
            let known = outcome["known"].as_array().map_or(&[][..], Vec::as_slice);
            let counts = by_dtype.entry(dtype(row)).or_default();
            match outcome["ending"].as_str() {
                Some("clean") => counts.clean += 1,
                Some("findings") if !known.is_empty() => counts.known += 1,
                Some("findings") => counts.findings += 1,
                Some("skipped") => {
                    counts.skipped += 1;
                    continue;
                }
                _ => counts.silent += 1,
            }
            if outcome["ending"] != "clean" {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let codes: Vec<String> =
                    outcome["codes"].as_array().into_iter().flatten().map(text).collect();
                let bugs: Vec<String> = known.iter().map(text).collect();
                let known = if bugs.is_empty() { "" } else { ", known: " };
                others.insert(format!(
                    "- {} {}{known}{}: `{}`",
                    text(&outcome["ending"]),
                    codes.join(", "),
                    bugs.join(", "),
                    text(&row["command"])
                ));
            }
        }
        for (dtype, counts) in &by_dtype {
            writeln!(text, "{}", counts.row(&name(subject, &sweep), dtype))?;
            all.add(counts);
        }
        if !others.is_empty() {
            writeln!(lists, "\nNot clean, {}:\n", subject.engine)?;
            for line in others {
                writeln!(lists, "{line}")?;
            }
        }
    }
    writeln!(text, "{}", all.row("**all**", ""))?;
    Ok(text + &lists)
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.clean += other.clean;
        self.known += other.known;
        self.findings += other.findings;
        self.silent += other.silent;
        self.skipped += other.skipped;
    }

    fn row(&self, engine: &str, dtype: &str) -> String {
        let Self { clean, known, findings, silent, skipped } = self;
        let answered = clean + findings;
        let bound = match answered {
            0 => "unknown".to_owned(),
            _ => format!("{:.2} %", 100.0 * upper(*findings, answered)),
        };
        format!(
            "| {engine} | {dtype} | {} | {clean} | {known} | {silent} | {skipped} | {findings} | {bound} |",
            answered + known + silent + skipped
        )
    }
}

/// The name of an engine with the versions that ran.
fn name(subject: &Subject, sweep: &Value) -> String {
    let version = |package: &str| sweep["versions"][package].as_str();
    match (subject.engine, version("deepspeed"), version("torch")) {
        ("native", ..) => "native".to_owned(),
        (_, Some(deepspeed), _) => format!("DeepSpeed {deepspeed}"),
        (engine, None, torch) => {
            format!("{}, torch {}", engine.to_uppercase(), torch.unwrap_or("unknown"))
        }
    }
}

/// The dtype of the model in a row of the sweep.
fn dtype(row: &Value) -> String {
    let command = row["command"].as_str().unwrap_or_default();
    let mut words = command.split(' ').skip_while(|word| *word != "--dtype");
    words.nth(1).unwrap_or("bf16").to_owned()
}

fn read(path: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no sweep's report", path.display()))
}
