//! Bugs that are planted in real engines, one at a time, and the findings of the standard suite on them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::engines::Environments;
use crate::page::Page;
use crate::{sweeps, workspace};

/// The page with the table of planted bugs.
pub const PAGE: Page = Page { path: "docs/planted.md", command: "cargo xtask planted" };

/// The directory of the changes and of the module that plants them, from the root of the repository.
const FIXTURES: &str = "fixtures/planted";

/// The options of `cargo xtask planted`.
#[derive(clap::Args)]
pub struct Options {
    /// Only changes whose names contain one of these [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Run nothing: only make the page, or print the results found so far
    #[arg(long)]
    page: bool,

    /// Leave out changes that have results already
    #[arg(long)]
    resume: bool,
}

/// A change that is planted in an engine.
struct Row {
    name: String,
    engine: String,
    /// The codes that name the cause; the first finding has to have one of them. Empty for a harmless change.
    expect: Vec<String>,
    root: String,
}

/// The outcome of the standard suite on a change.
enum Outcome {
    /// Every probe passed.
    Silent,
    /// A probe failed, with this finding first.
    Found { code: String, message: String, probe: String },
}

/// Runs the standard suite on the requested changes. Writes the page if all changes have results; otherwise
/// prints the results found so far.
pub fn run(options: &Options) -> Result<()> {
    let dir = sweeps::dir("planted")?;
    let rows = rows()?;
    let is_wanted = |row: &&Row| {
        options.names.is_empty() || options.names.iter().any(|name| row.name.contains(name))
    };
    if !options.page {
        let environments = Environments::prepare()?;
        let python = environments.python()?;
        for row in rows.iter().filter(is_wanted) {
            let results = results(&dir, row);
            if !(options.resume && results.is_file()) {
                try_suite(&environments, &python, row, &results)?;
            }
        }
    }
    let there = sweeps::kept(&dir, rows.iter().map(|row| (row, results(&dir, row))))?;
    let outcomes: Vec<_> = there
        .into_iter()
        .map(|(row, results)| Ok((row, Outcome::read(&results)?)))
        .collect::<Result<_>>()?;
    let table = table(&outcomes);
    if outcomes.len() < rows.len() {
        println!("{table}");
        eprintln!(
            "{} of {} changes have results: {} stays as it is",
            outcomes.len(),
            rows.len(),
            PAGE.path
        );
        return Ok(());
    }
    PAGE.write(&table)
}

fn results(dir: &Path, row: &Row) -> PathBuf {
    dir.join(format!("{}.json", row.name))
}

/// Runs the suite on a change. The suite finds a bug with the first probe that fails; a harmless change has
/// to pass all probes.
fn try_suite(environments: &Environments, python: &Path, row: &Row, results: &Path) -> Result<()> {
    eprintln!("{}", row.name);
    let part = results.with_extension("part");
    let runs = results.with_extension("runs");
    remove(&runs)?;
    let mut check = environments.zprobe()?;
    check.args([
        "check",
        "--quiet",
        "--output-format",
        "json",
        "--engine",
        &row.engine,
        "--python",
    ]);
    check.arg(python).arg("--out").arg(&runs);
    if !row.is_harmless() {
        check.arg("--fail-fast");
    }
    check.env("PYTHONPATH", workspace::root().join(FIXTURES)).env("PLANTED", &row.name);
    check.stdout(File::create(&part).with_context(|| format!("cannot write {}", part.display()))?);
    let status = check.status().context("cannot start zprobe")?;
    let ran = status.code().is_some_and(|code| code != 2);
    ensure!(ran, "the suite on {} ended with {status}; see the messages above", row.name);
    remove(&runs)?;
    fs::rename(&part, results).with_context(|| format!("cannot write {}", results.display()))
}

/// Removes a directory if it exists.
fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn rows() -> Result<Vec<Row>> {
    let path = workspace::root().join(FIXTURES).join("planted.toml");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let document: toml::Table = text.parse().with_context(|| format!("{}", path.display()))?;
    let rows = document.get("planted").and_then(toml::Value::as_array).context("no rows")?;
    rows.iter()
        .map(|row| Row::read(row).with_context(|| format!("a planted change lacks a field: {row}")))
        .collect()
}

impl Row {
    fn read(row: &toml::Value) -> Option<Self> {
        let text = |key: &str| Some(row.get(key)?.as_str()?.to_owned());
        let expect = row.get("expect").and_then(toml::Value::as_array);
        let codes =
            expect.into_iter().flatten().filter_map(|code| code.as_str().map(str::to_owned));
        Some(Self {
            name: text("name")?,
            engine: text("engine")?,
            expect: codes.collect(),
            root: text("root")?,
        })
    }

    fn is_harmless(&self) -> bool {
        self.expect.is_empty()
    }
}

impl Outcome {
    fn read(results: &Path) -> Result<Self> {
        let text = fs::read_to_string(results)
            .with_context(|| format!("cannot read {}", results.display()))?;
        let check: Value =
            serde_json::from_str(&text).with_context(|| format!("{}", results.display()))?;
        let cases =
            check["cases"].as_array().context("the results of zprobe check have no cases")?;
        let red =
            cases.iter().find(|case| !["passed", "skipped"].contains(&text_of(&case["status"])));
        Ok(red.map_or(Self::Silent, |case| {
            let finding = &case["findings"][0];
            Self::Found {
                code: text_of(&finding["code"]).to_owned(),
                message: text_of(&finding["message"]).to_owned(),
                probe: text_of(&case["probe"]).to_owned(),
            }
        }))
    }

    fn is_silent(&self) -> bool {
        matches!(self, Self::Silent)
    }

    /// True if the code of the first finding names the cause of this row.
    fn names(&self, row: &Row) -> bool {
        matches!(self, Self::Found { code, .. } if row.expect.contains(code))
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The section of the page that is written from the results.
fn table(outcomes: &[(&Row, Outcome)]) -> String {
    let (harmless, bugs): (Vec<_>, Vec<_>) =
        outcomes.iter().partition(|(row, _)| row.is_harmless());
    let mut text = String::from(
        "| engine | bugs | caught | named | harmless | silent |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for engine in ["deepspeed", "ddp", "fsdp2", ""] {
        let is_of = |row: &Row| engine.is_empty() || row.engine == engine;
        let of = |all: &[&(&Row, Outcome)], counts: &dyn Fn(&Row, &Outcome) -> bool| {
            all.iter().filter(|(row, outcome)| is_of(row) && counts(row, outcome)).count()
        };
        let label = if engine.is_empty() { "**all**" } else { engine };
        let _ = writeln!(
            text,
            "| {label} | {} | {} | {} | {} | {} |",
            of(&bugs, &|_, _| true),
            of(&bugs, &|_, outcome| !outcome.is_silent()),
            of(&bugs, &|row, outcome| outcome.names(row)),
            of(&harmless, &|_, _| true),
            of(&harmless, &|_, outcome| outcome.is_silent()),
        );
    }
    text += "\n| change | cause | first finding | named |\n|---|---|---|---|\n";
    for (row, outcome) in outcomes {
        let finding = match outcome {
            Outcome::Silent => "none".to_owned(),
            Outcome::Found { code, message, probe } => format!("{code} ({probe}): {message}"),
        };
        let named = match (row.is_harmless(), outcome) {
            (true, Outcome::Silent) => "silent, as it should be",
            (true, _) => "**false alarm**",
            (false, Outcome::Silent) => "**missed**",
            (false, outcome) if outcome.names(row) => "yes",
            (false, _) => "**another name**",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {named} |",
            row.name,
            row.root.replace('|', "\\|"),
            finding.replace('|', "\\|"),
        );
    }
    text
}
