//! The table of several sweeps: one column for each sweep, and one line for all configurations that behave alike in
//! every sweep.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::lattice::Configuration;
use crate::lattice::group::group;
use crate::lattice::outcome::{Sweep, SweepEnding, SweepOutcome};
use anyhow::Result;
use zprobe_report::Form;
use zprobe_report::words::amount;

use super::table::{code, smallest, with};
use crate::table::{ListEntry, entries, grid, to_json};

/// The sign for a configuration that a sweep did not try.
const NOT_TRIED: &str = "–";

/// The table of these sweeps; sweeps of the same versions share a column. `surroundings` are arguments that are added
/// to the commands of a table for the terminal.
pub fn table(sweeps: &[Sweep], form: Form, surroundings: &[String]) -> Result<String> {
    if form == Form::Json {
        return to_json(&sweeps);
    }
    let columns = columns(sweeps);
    let mut quotes = Quotes::default();
    let mut rows: Vec<(&Configuration, Vec<String>)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, (_, sweeps)) in columns.iter().enumerate() {
        for row in sweeps.iter().flat_map(|sweep| &sweep.rows) {
            let place = *places.entry(&row.command).or_insert_with(|| {
                rows.push((&row.configuration, vec![NOT_TRIED.to_owned(); columns.len()]));
                rows.len() - 1
            });
            rows[place].1[at] = quotes.cell(&row.outcome);
        }
    }
    let total = rows.len();
    let good = |cell: &String| cell == SweepEnding::Clean.name() || cell == NOT_TRIED;
    rows.retain(|(_, cells)| !cells.iter().all(good));
    let groups = group(rows);
    let classes =
        groups.iter().flat_map(|it| it.classes.iter().map(move |class| (&it.what, class)));
    let mut text = if form == Form::Markdown {
        let lines = classes.map(|(cells, class)| {
            let mut line = vec![class.bases.join("; "), with(class)];
            line.extend(cells.iter().cloned());
            line.push(code(&smallest(class, &[]), form));
            line
        });
        let mut head = vec!["where", "with"];
        head.extend(columns.iter().map(|(name, _)| name.as_str()));
        head.push("for example");
        grid(form, &head, lines)
    } else {
        entries(classes.map(|(cells, class)| {
            let names = columns.iter().map(|(name, _)| name.clone());
            ListEntry {
                title: format!("{}, {}", class.bases.join("; "), with(class)),
                facts: names.zip(cells.iter().cloned()).collect(),
                command: smallest(class, surroundings),
            }
        }))
    };
    let _ = writeln!(text, "\n{} in all", amount(total, "configuration"));
    for (number, words) in quotes.0.iter().enumerate() {
        let _ = writeln!(text, "\n[{}] {}", number + 1, code(words, form));
    }
    Ok(text)
}

/// The sweeps by column: sweeps of the same versions share a column, whose name tells it from the others.
fn columns(sweeps: &[Sweep]) -> Vec<(String, Vec<&Sweep>)> {
    let differs = |name: &str| {
        sweeps.iter().any(|sweep| sweep.versions.get(name) != sweeps[0].versions.get(name))
    };
    let mut columns: Vec<(String, Vec<&Sweep>)> = Vec::new();
    for sweep in sweeps {
        let versions = sweep.versions.iter().filter(|(name, _)| differs(name));
        let names: Vec<String> =
            versions.map(|(name, version)| format!("{name} {version}")).collect();
        let name = names.join(", ");
        match columns.iter_mut().find(|(known, _)| *known == name) {
            Some((_, same)) => same.push(sweep),
            None => columns.push((name, vec![sweep])),
        }
    }
    columns
}

/// The messages of engines in the engines' own words, numbered.
#[derive(Default)]
struct Quotes(Vec<String>);

impl Quotes {
    /// An outcome in short: `ZP104`, or `crashed [2]` with the number of the quoted message.
    fn cell(&mut self, outcome: &SweepOutcome) -> String {
        let Some(words) = outcome.own_words() else { return outcome.words() };
        // The text in parentheses has files and lines, which differ between releases.
        let words = words.split(" (").next().unwrap_or(words);
        let known = self.0.iter().position(|quote| quote == words);
        let at = known.unwrap_or_else(|| {
            self.0.push(words.to_owned());
            self.0.len() - 1
        });
        format!("{} [{}]", outcome.ending, at + 1)
    }
}

#[cfg(test)]
mod tests {
    use crate::lattice::Lattice;
    use crate::lattice::outcome::SweepRow;
    use zprobe_model::spec::Engine;

    use super::*;

    fn sweep(version: &str, outcomes: &[SweepOutcome]) -> Sweep {
        let rows = Lattice::of(Engine::Ddp).covering().into_iter().zip(outcomes);
        let rows = rows.map(|(configuration, outcome)| SweepRow {
            label: configuration.label(),
            command: configuration.command(),
            configuration,
            outcome: outcome.clone(),
            seconds: 1.0,
            run_dir: None,
        });
        Sweep {
            engine: Engine::Ddp,
            versions: [("torch".to_owned(), version.to_owned())].into(),
            steps: 2,
            refused: vec![],
            not_tried: 0,
            rows: rows.collect(),
        }
    }

    fn outcome(ending: SweepEnding, codes: &[&str], message: &str) -> SweepOutcome {
        SweepOutcome {
            ending,
            codes: codes.iter().map(|&code| code.to_owned()).collect(),
            message: Some(message.to_owned()),
            known: vec![],
            optimizer_class: None,
            then: None,
        }
    }

    #[test]
    fn releases_stand_side_by_side_and_what_is_clean_in_all_is_only_counted() {
        let clean = outcome(SweepEnding::Clean, &[], "");
        let wrong = outcome(SweepEnding::Findings, &["ZP104"], "twice");
        let crash =
            |line| outcome(SweepEnding::Crashed, &["ZP901"], &format!("IndexError (a.py:{line})"));
        let sweeps = [
            sweep("2.6.0", &[clean.clone(), wrong.clone(), crash(1)]),
            sweep("2.11.0", &[clean.clone(), clean, crash(7)]),
        ];
        let text = table(&sweeps, Form::Markdown, &[]).expect("a table");
        let cells = |line: &str| -> Vec<String> {
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
        };
        let lines: Vec<_> = text.lines().map(cells).collect();
        assert_eq!(lines[0], ["where", "with", "torch 2.6.0", "torch 2.11.0", "for example"]);
        assert_eq!(lines[2][..4], ["fp16", "nothing else", "ZP104", "clean"]);
        assert_eq!(lines[3][..4], ["fp32", "nothing else", "crashed [1]", "crashed [1]"]);
        assert!(text.ends_with("\n3 configurations in all\n\n[1] `IndexError`\n"), "{text}");
    }
}
