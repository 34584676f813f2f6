//! The planted bugs that each probe of the standard suite finds, and that no other probe finds.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::engines::Environments;
use crate::page::Page;
use crate::planted::{self, Change, Extent, Matrix, Options, Suite};

/// An engine whose standard suite is examined.
pub struct Engine {
    name: &'static str,
    /// The section of the page.
    pub page: Page,
    /// The time that its standard suite may take, in seconds.
    budget_s: f64,
}

/// The engines whose suites have a budget. The page has a section for each engine, so that the bugs of a single engine
/// can be run.
pub const ENGINES: [Engine; 3] = [
    Engine::new("deepspeed", "cargo xtask coverage ds-", 90.0),
    Engine::new("ddp", "cargo xtask coverage ddp-", 30.0),
    Engine::new("fsdp2", "cargo xtask coverage fsdp2-", 35.0),
];

/// The parts of the lattice that are run on bugs that no probe finds.
const PARTS: [&str; 4] = ["--part", "base", "--part", "factor"];

impl Engine {
    const fn new(name: &'static str, command: &'static str, budget_s: f64) -> Self {
        Self { name, page: Page { path: "docs/coverage.md", command }, budget_s }
    }
}

/// Runs all probes on the requested bugs, and the lattice on those bugs that no probe finds. Writes the
/// sections of the engines whose bugs all have results, and prints how many bugs of the others have none.
pub fn run(options: &Options) -> Result<()> {
    let is_examined = |change: &Change| {
        !change.is_harmless() && ENGINES.iter().any(|it| it.name == change.engine)
    };
    let matrix = Matrix::make(options, Extent::Whole, is_examined)?;
    let missed = matrix.suites.iter().filter(|it| it.is_silent());
    let missed: Vec<&Change> = missed.map(|it| &it.change).collect();
    if !options.page {
        let environments = Environments::prepare()?;
        let python = environments.python()?;
        for change in missed.iter().filter(|it| options.choose(it)) {
            sweep(&environments, &python, change, options.resume)?;
        }
    }
    for engine in ENGINES {
        let of_engine = |it: &&Suite| it.change.engine == engine.name;
        let suites: Vec<&Suite> = matrix.suites.iter().filter(of_engine).collect();
        let without = matrix.without.iter().filter(|it| it.engine == engine.name).count();
        if without > 0 {
            eprintln!(
                "{}: {without} of {} bugs have no results: the section of {} stays as it is",
                engine.name,
                suites.len() + without,
                engine.page.path,
            );
            continue;
        }
        let missed = missed.iter().filter(|it| it.engine == engine.name);
        let lattice: Vec<_> =
            missed.map(|it| Ok((*it, Found::read(&results(it)?)?))).collect::<Result<_>>()?;
        engine.page.write(&section(&engine, &suites, &lattice)?)?;
    }
    Ok(())
}

/// The file with the results of the lattice on a change.
fn results(change: &Change) -> Result<PathBuf> {
    Ok(planted::dir(Extent::Whole)?.join(format!("{}.lattice", change.name)))
}

/// Runs the lattice on a change; with `resume`, only the configurations without results.
fn sweep(environments: &Environments, python: &Path, change: &Change, resume: bool) -> Result<()> {
    eprintln!("{}: no probe finds it; the lattice", change.name);
    let results = results(change)?;
    let part = results.with_extension("lattice-part");
    let mut sweep = environments.zprobe()?;
    sweep.args(["sweep", "--engine", &change.engine, "--output-format", "json"]).args(PARTS);
    sweep.arg("--python").arg(python);
    if resume && results.is_file() {
        sweep.arg("--resume").arg(&results);
    }
    planted::plant(&mut sweep, change);
    sweep.stdout(File::create(&part).with_context(|| format!("cannot write {}", part.display()))?);
    let status = sweep.status().context("cannot start zprobe")?;
    let ran = status.code().is_some_and(|code| code != 2);
    ensure!(ran, "the sweep of {} ended with {status}; see the messages above", change.name);
    fs::rename(&part, &results).with_context(|| format!("cannot write {}", results.display()))
}

/// The configurations of the lattice that find a bug.
struct Found {
    /// The number of configurations that were run.
    tried: usize,
    /// The number of configurations that an interrupted sweep left out.
    not_tried: u64,
    /// The command and the outcome of each configuration that is not clean.
    red: Vec<(String, String)>,
}

impl Found {
    /// The results of a sweep; `None` if the sweep was not run.
    fn read(results: &Path) -> Result<Option<Self>> {
        if !results.is_file() {
            return Ok(None);
        }
        let text = fs::read_to_string(results)
            .with_context(|| format!("cannot read {}", results.display()))?;
        let sweep: Value =
            serde_json::from_str(&text).with_context(|| format!("{}", results.display()))?;
        let rows = sweep["rows"].as_array().context("the results of zprobe sweep have no rows")?;
        let not_tried = sweep["not_tried"].as_u64().unwrap_or_default();
        Ok(Some(Self::of(rows, not_tried)))
    }

    fn of(rows: &[Value], not_tried: u64) -> Self {
        let ending =
            |row: &&Value| row["outcome"]["ending"].as_str().unwrap_or_default().to_owned();
        let tried = rows.iter().filter(|row| !["not-run", "skipped"].contains(&&*ending(row)));
        let red = rows.iter().filter(|row| {
            // A known bug of the release is there without the planted one, too.
            let known = row["outcome"]["known"].as_array().is_some_and(|it| !it.is_empty());
            ["findings", "crashed"].contains(&&*ending(row)) && !known
        });
        let words = |row: &Value| {
            let codes = row["outcome"]["codes"].as_array().into_iter().flatten();
            let codes: Vec<_> = codes.filter_map(Value::as_str).collect();
            let command = row["command"].as_str().unwrap_or_default().to_owned();
            (command, codes.join(", "))
        };
        Self { tried: tried.count(), not_tried, red: red.map(words).collect() }
    }
}

/// A probe of the suite of an engine.
struct Probe<'a> {
    name: &'a str,
    /// The median time of the runs that passed.
    seconds: f64,
    /// The bugs that the probe finds, with a first finding that names the cause.
    finds: BTreeSet<&'a str>,
}

/// The probes of a suite, in its order.
fn probes<'a>(suites: &[&'a Suite]) -> Vec<Probe<'a>> {
    let order = suites.first().into_iter().flat_map(|suite| &suite.cases);
    order
        .map(|case| {
            let name = case.probe.as_str();
            let of = |suite: &'a Suite| suite.cases.iter().find(|it| it.probe == name);
            let found = suites
                .iter()
                .filter(|it| of(it).is_some_and(|case| case.names(&it.change)))
                .map(|it| it.change.name.as_str());
            let passed = suites.iter().filter_map(|it| of(it)).filter(|it| it.has_passed());
            let seconds = median(passed.map(|it| it.seconds));
            Probe { name, seconds, finds: found.collect() }
        })
        .collect()
}

fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The indices of probes that find all bugs together. Each is the probe that finds most of the bugs that are left, and
/// the fastest of several.
fn cover(probes: &[Probe<'_>]) -> Vec<usize> {
    let mut left: BTreeSet<&str> = probes.iter().flat_map(|it| it.finds.iter().copied()).collect();
    let mut chosen = Vec::new();
    while !left.is_empty() {
        let gain = |at: &usize| {
            let Probe { finds, seconds, .. } = &probes[*at];
            (finds.intersection(&left).count(), Reverse((seconds * 1e3) as u64))
        };
        let Some(best) = (0..probes.len()).max_by_key(gain) else { break };
        left.retain(|bug| !probes[best].finds.contains(bug));
        chosen.push(best);
    }
    chosen.sort_unstable();
    chosen
}

/// The section of an engine: its probes, the smallest suite, and the bugs that only the lattice finds.
fn section(
    engine: &Engine,
    suites: &[&Suite],
    lattice: &[(&Change, Option<Found>)],
) -> Result<String> {
    let probes = probes(suites);
    let chosen = cover(&probes);
    let found: BTreeSet<&str> = probes.iter().flat_map(|it| it.finds.iter().copied()).collect();
    let time =
        |all: &mut dyn Iterator<Item = usize>| -> f64 { all.map(|at| probes[at].seconds).sum() };
    let total = time(&mut (0..probes.len()));
    let mut text = String::new();
    writeln!(
        text,
        "{} probes take {total:.1} s; the budget is {} s. With a first finding that names the cause, they find \
         {} of {} bugs. {} probes find these bugs, too, in {:.1} s.\n",
        probes.len(),
        engine.budget_s,
        found.len(),
        suites.len(),
        chosen.len(),
        time(&mut chosen.iter().copied()),
    )?;
    text += "| probe | seconds | bugs it finds | bugs that it alone finds | in the smallest set |\n\
             |---|--:|--:|---|---|\n";
    for (at, probe) in probes.iter().enumerate() {
        let others = |bug: &&&str| probes.iter().filter(|it| it.finds.contains(**bug)).count() == 1;
        let alone: Vec<&str> = probe.finds.iter().filter(others).copied().collect();
        let chosen = if chosen.contains(&at) { "yes" } else { "" };
        writeln!(
            text,
            "| {} | {:.2} | {} | {} | {chosen} |",
            probe.name,
            probe.seconds,
            probe.finds.len(),
            alone.join(", "),
        )?;
    }
    for (finds, words) in
        [(false, "find no bug"), (true, "find only bugs that the smallest set finds, too")]
    {
        let outside = |at: &usize| !chosen.contains(at) && probes[*at].finds.is_empty() != finds;
        let these: Vec<usize> = (0..probes.len()).filter(outside).collect();
        if !these.is_empty() {
            let names: Vec<_> = these.iter().map(|&at| probes[at].name).collect();
            let took = time(&mut these.iter().copied());
            writeln!(
                text,
                "\nProbes that {words} ({}, {took:.1} s): {}.",
                names.len(),
                names.join(", ")
            )?;
        }
    }
    let is_unnamed = |it: &&&Suite| !found.contains(it.change.name.as_str());
    let other: Vec<_> = suites.iter().filter(is_unnamed).filter(|it| !it.is_silent()).collect();
    if !other.is_empty() {
        let names: Vec<_> = other.iter().map(|it| it.change.name.as_str()).collect();
        writeln!(
            text,
            "\nBugs that fail probes, but none under the right name: {}.",
            names.join(", ")
        )?;
    }
    if !lattice.is_empty() {
        text += "\n| bug that no probe finds | configurations of the lattice | find it | findings | the shortest of them |\n\
                 |---|--:|--:|---|---|\n";
        for (change, found) in lattice {
            let Some(Found { tried, not_tried, red }) = found else {
                writeln!(text, "| {} | not run | | | |", change.name)?;
                continue;
            };
            let codes: BTreeSet<&str> = red.iter().map(|(_, codes)| codes.as_str()).collect();
            let codes: Vec<&str> = codes.into_iter().collect();
            let left = match not_tried {
                0 => String::new(),
                left => format!(", {left} left out"),
            };
            let shortest = red.iter().map(|(command, _)| command).min_by_key(|it| it.len());
            writeln!(
                text,
                "| {} | {tried}{left} | {} | {} | {} |",
                change.name,
                red.len(),
                codes.join("; "),
                shortest.map_or_else(String::new, |it| format!("`{it}`")),
            )?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn probe<'a>(name: &'a str, seconds: f64, finds: &[&'a str]) -> Probe<'a> {
        Probe { name, seconds, finds: finds.iter().copied().collect() }
    }

    #[test]
    fn the_smallest_set_finds_all_bugs_with_the_fastest_of_equal_probes() {
        let probes = [
            probe("nothing", 0.1, &[]),
            probe("slow", 2.0, &["a", "b"]),
            probe("fast", 1.0, &["a", "b"]),
            probe("part", 0.1, &["b"]),
            probe("alone", 9.0, &["c"]),
        ];
        assert_eq!(cover(&probes), [2, 4]);
        assert!(cover(&probes[..1]).is_empty());
    }

    #[test]
    fn known_bugs_of_the_release_do_not_count_as_found_by_the_lattice() {
        let row = |command: &str, ending: &str, known: &[&str]| json!({"command": command, "outcome": {"ending": ending, "codes": ["ZP102"], "known": known}});
        let rows = [
            row("clean", "clean", &[]),
            row("known", "findings", &["a-bug"]),
            row("planted", "findings", &[]),
            row("skipped", "skipped", &[]),
        ];
        let found = Found::of(&rows, 0);
        assert_eq!((found.tried, found.red), (3, vec![("planted".to_owned(), "ZP102".to_owned())]));
    }
}
