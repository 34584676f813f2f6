//! Bugs that are planted in real engines, one at a time, and the findings of the standard suite on them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::engines::Environments;
use crate::page::Page;
use crate::{sweeps, workspace};

/// The directory of the changes and of the module that plants them, from the root of the repository.
const FIXTURES: &str = "fixtures/planted";

/// The sets of changes.
pub const SETS: [Set; 2] = [
    // The rules and the suite were extended with this set.
    Set { file: "planted.toml", page: Page::planted("cargo xtask planted --set planted.toml") },
    // This set was written later, without knowledge of the rules.
    Set { file: "second.toml", page: Page::planted("cargo xtask planted --set second.toml") },
];

/// A file with changes.
pub struct Set {
    file: &'static str,
    /// The section of the page with the results of these changes.
    pub page: Page,
}

impl Page {
    const fn planted(command: &'static str) -> Self {
        Self { path: "docs/planted.md", command }
    }
}

/// The options of `cargo xtask planted` and of `cargo xtask coverage`.
#[derive(clap::Args)]
// The commands that take these options have clap groups of the same name.
#[group(skip)]
pub struct Options {
    /// Only changes whose names contain one of these [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Only the changes of this file of fixtures/planted [default: all]
    #[arg(long, value_name = "FILE", value_parser = SETS.map(|it| it.file))]
    set: Option<String>,

    /// Run nothing: only make the page, or print the results found so far
    #[arg(long)]
    pub page: bool,

    /// Leave out changes that have results already
    #[arg(long)]
    pub resume: bool,
}

impl Options {
    /// True if the options choose this change.
    pub fn choose(&self, change: &Change) -> bool {
        let of_set = self.set.as_ref().is_none_or(|it| it == change.set);
        of_set && (self.names.is_empty() || self.names.iter().any(|it| change.name.contains(it)))
    }
}

/// A change that is planted in an engine.
pub struct Change {
    /// The file of the change.
    set: &'static str,
    pub name: String,
    pub engine: String,
    /// The codes that name the cause; the first finding has to have one of them. Empty for a harmless change.
    expect: Vec<String>,
    root: String,
}

/// The result of a probe of the standard suite on a change.
pub struct Case {
    pub probe: String,
    pub seconds: f64,
    was_skipped: bool,
    /// The first finding; `None` if the probe passed or was skipped.
    red: Option<Finding>,
}

/// The first finding of a failed probe. A probe without a report has no code.
struct Finding {
    code: String,
    message: String,
}

/// The part of a standard suite that is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Up to the first failed probe.
    FirstFailure,
    /// All probes.
    Whole,
}

/// A change, and the results of the probes of its engine's standard suite.
pub struct Suite {
    pub change: Change,
    pub cases: Vec<Case>,
}

/// The suites of the changes that have results, and the changes without results.
pub struct Matrix {
    pub suites: Vec<Suite>,
    pub without: Vec<Change>,
}

/// Runs the standard suite on the requested changes, up to the first failed probe. Writes the sections of the
/// sets whose changes all have results, and prints the results found so far of the other sets.
pub fn run(options: &Options) -> Result<()> {
    let matrix = Matrix::make(options, Extent::FirstFailure, |_| true)?;
    for Set { file, page } in SETS {
        let suites: Vec<&Suite> = matrix.suites.iter().filter(|it| it.change.set == file).collect();
        let without = matrix.without.iter().filter(|it| it.set == file).count();
        let table = table(&suites);
        if without == 0 {
            page.write(&table)?;
        } else {
            println!("{table}");
            eprintln!(
                "{file}: {without} of {} changes have no results: the section of {} stays as it is",
                suites.len() + without,
                page.path,
            );
        }
    }
    Ok(())
}

impl Matrix {
    /// Runs the standard suite on those requested changes that are `examined`, and reads their results and all
    /// earlier ones of the same extent.
    pub fn make(
        options: &Options,
        extent: Extent,
        examined: impl Fn(&Change) -> bool,
    ) -> Result<Self> {
        let dir = dir(extent)?;
        let changes: Vec<Change> = changes()?.into_iter().filter(examined).collect();
        let results = |change: &Change| dir.join(format!("{}.json", change.name));
        if !options.page {
            let environments = Environments::prepare()?;
            let python = environments.python()?;
            for change in changes.iter().filter(|it| options.choose(it)) {
                let results = results(change);
                if !(options.resume && results.is_file()) {
                    try_suite(&environments, &python, change, extent, &results)?;
                }
            }
        }
        let (there, without): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|it| results(it).is_file());
        let there = there.into_iter().map(|change| {
            let results = results(&change);
            (change, results)
        });
        let there = sweeps::kept(&dir, there)?;
        let suites = there.into_iter().map(|(change, results)| {
            let cases = Case::read(&results).with_context(|| format!("{}", results.display()))?;
            Ok(Suite { change, cases })
        });
        Ok(Self { suites: suites.collect::<Result<_>>()?, without })
    }
}

/// The directory that keeps the results of the suites of this extent.
pub fn dir(extent: Extent) -> Result<PathBuf> {
    sweeps::dir(match extent {
        Extent::FirstFailure => "planted",
        Extent::Whole => "planted-suites",
    })
}

/// Lets a command of zprobe plant a change in the engine that it runs.
pub fn plant(command: &mut Command, change: &Change) {
    command.env("PYTHONPATH", workspace::root().join(FIXTURES)).env("PLANTED", &change.name);
}

/// Runs the suite on a change.
fn try_suite(
    environments: &Environments,
    python: &Path,
    change: &Change,
    extent: Extent,
    results: &Path,
) -> Result<()> {
    eprintln!("{}", change.name);
    let part = results.with_extension("part");
    let runs = results.with_extension("runs");
    remove(&runs)?;
    let mut check = environments.zprobe()?;
    check.args(["check", "--quiet", "--output-format", "json", "--engine", &change.engine]);
    check.arg("--python").arg(python).arg("--out").arg(&runs);
    if extent == Extent::FirstFailure {
        check.arg("--fail-fast");
    }
    plant(&mut check, change);
    check.stdout(File::create(&part).with_context(|| format!("cannot write {}", part.display()))?);
    let status = check.status().context("cannot start zprobe")?;
    let ran = status.code().is_some_and(|code| code != 2);
    ensure!(ran, "the suite on {} ended with {status}; see the messages above", change.name);
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

fn changes() -> Result<Vec<Change>> {
    let sets: Vec<_> = SETS.iter().map(|set| changes_of(set.file)).collect::<Result<_>>()?;
    Ok(sets.into_iter().flatten().collect())
}

fn changes_of(set: &'static str) -> Result<Vec<Change>> {
    let path = workspace::root().join(FIXTURES).join(set);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let document: toml::Table = text.parse().with_context(|| format!("{}", path.display()))?;
    let rows = document.get("planted").and_then(toml::Value::as_array).context("no rows")?;
    rows.iter()
        .map(|row| {
            Change::read(set, row).with_context(|| format!("a planted change lacks a field: {row}"))
        })
        .collect()
}

impl Change {
    fn read(set: &'static str, row: &toml::Value) -> Option<Self> {
        let text = |key: &str| Some(row.get(key)?.as_str()?.to_owned());
        let expect = row.get("expect").and_then(toml::Value::as_array);
        let codes =
            expect.into_iter().flatten().filter_map(|code| code.as_str().map(str::to_owned));
        Some(Self {
            set,
            name: text("name")?,
            engine: text("engine")?,
            expect: codes.collect(),
            root: text("root")?,
        })
    }

    /// True for a change that is no bug.
    pub fn is_harmless(&self) -> bool {
        self.expect.is_empty()
    }
}

impl Case {
    fn read(results: &Path) -> Result<Vec<Self>> {
        let check: Value = serde_json::from_str(&fs::read_to_string(results)?)?;
        let cases =
            check["cases"].as_array().context("the results of zprobe check have no cases")?;
        Ok(cases.iter().map(Self::of).collect())
    }

    fn of(case: &Value) -> Self {
        let status = text_of(&case["status"]);
        let was_skipped = status == "skipped";
        let is_red = !was_skipped && status != "passed";
        let finding = &case["findings"][0];
        let red = is_red.then(|| Finding {
            code: text_of(&finding["code"]).to_owned(),
            message: text_of(&finding["message"]).to_owned(),
        });
        let seconds = case["seconds"].as_f64().unwrap_or_default();
        Self { probe: text_of(&case["probe"]).to_owned(), seconds, was_skipped, red }
    }

    /// True if the probe was run and passed.
    pub fn has_passed(&self) -> bool {
        !self.was_skipped && self.red.is_none()
    }

    /// True if the code of the first finding names the cause of this change.
    pub fn names(&self, change: &Change) -> bool {
        self.red.as_ref().is_some_and(|it| change.expect.contains(&it.code))
    }
}

impl Suite {
    /// The first failed probe, and its first finding.
    fn first(&self) -> Option<(&Case, &Finding)> {
        self.cases.iter().find_map(|case| Some((case, case.red.as_ref()?)))
    }

    /// True if all probes passed.
    pub fn is_silent(&self) -> bool {
        self.first().is_none()
    }

    /// True if the first finding of the first failed probe names the cause.
    fn is_named(&self) -> bool {
        self.first().is_some_and(|(case, _)| case.names(&self.change))
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The section of the page that is written from the results.
fn table(suites: &[&Suite]) -> String {
    let mut text = String::from(
        "| engine | bugs | caught | named | harmless | silent |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let engines: BTreeSet<&str> = suites.iter().map(|it| it.change.engine.as_str()).collect();
    for engine in engines.into_iter().chain([""]) {
        let of = |harmless: bool, counts: &dyn Fn(&Suite) -> bool| {
            let of_engine =
                suites.iter().filter(|it| engine.is_empty() || it.change.engine == engine);
            of_engine.filter(|it| it.change.is_harmless() == harmless && counts(it)).count()
        };
        let label = if engine.is_empty() { "**all**" } else { engine };
        let _ = writeln!(
            text,
            "| {label} | {} | {} | {} | {} | {} |",
            of(false, &|_| true),
            of(false, &|suite| !suite.is_silent()),
            of(false, &Suite::is_named),
            of(true, &|_| true),
            of(true, &Suite::is_silent),
        );
    }
    text += "\n| change | cause | first finding | named |\n|---|---|---|---|\n";
    for suite in suites {
        let finding = suite.first().map_or_else(
            || "none".to_owned(),
            |(case, Finding { code, message })| format!("{code} ({}): {message}", case.probe),
        );
        let named = match (suite.change.is_harmless(), suite.is_silent()) {
            (true, true) => "silent, as it should be",
            (true, false) => "**false alarm**",
            (false, true) => "**missed**",
            (false, false) if suite.is_named() => "yes",
            (false, false) => "**another name**",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {named} |",
            suite.change.name,
            suite.change.root.replace('|', "\\|"),
            finding.replace('|', "\\|"),
        );
    }
    text
}
