//! Recorded traces with damage, as disks, editors and attackers cause it, read in every form of output.

mod mutation;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::fixtures::{self, Fixture};
use super::{Campaign, Case, Survival};

/// The campaign of recorded traces with one to three mutations each. Every trace is diagnosed; some are also
/// reported on or compared.
pub const CAMPAIGN: Campaign = Campaign {
    name: "traces",
    faults: "recorded traces with bits flipped, records lost, fields changed, text of enemies",
    full: 5000,
    short: 200,
    try_case,
};

/// The forms of a report on standard output.
const FORMS: &[&str] = &["full", "concise", "json", "markdown", "junit", "github", "sarif"];

/// The size in bytes from which traces are drawn less often: large traces take long and contain nothing that
/// smaller ones lack.
const LARGE: usize = 1 << 18;

fn try_case(case: &mut Case) -> Result<Survival> {
    let fixture = draw(case)?;
    let mutated = mutation::mutate(fixture, &mut case.rng)?;
    fixtures::write(&case.dir.join("run"), &mutated)?;
    let form = *case.one_of(FORMS);
    let exports = ["json", "html", "junit", "sarif"].map(|it| format!("--export-{it}=out.{it}"));
    let call = case.zprobe(["diagnose", "run", "--output-format", form])?.args(exports);
    let ended = call.ended()?;
    let code = ended.code()?;
    if code != 2 {
        ensure!(!ended.stdout.is_empty(), "zprobe exited with code {code} and printed no report");
        let report = report(&case.dir.join("out.json"))?;
        ensure!(
            code != 0 || is_covered(case, fixture, &report)?,
            "{} is clean although the damage removed data",
            fixture.name,
        );
    }
    match case.rng.u8(..8) {
        0 => drop(
            case.zprobe(["report", "run", "--out", "a.zip", "--force"])?
                .ended()?
                .code_of(&[0, 2])?,
        ),
        1 => {
            let other = fixtures::dir(&fixture.name);
            let call = case.zprobe(["compare", "run"])?.args([other]);
            call.ended()?.code()?;
        }
        _ => {}
    }
    Ok(Survival::Survived)
}

/// A random trace; large traces are drawn rarely.
fn draw(case: &mut Case) -> Result<&'static Fixture> {
    let all = fixtures::all()?;
    for _ in 0..10 {
        let fixture = case.one_of(all);
        if fixture.lines.iter().map(String::len).sum::<usize>() < LARGE {
            return Ok(fixture);
        }
    }
    Ok(case.one_of(all))
}

/// A report that zprobe exported.
fn report(path: &std::path::Path) -> Result<Value> {
    let text = fs::read_to_string(path).context("zprobe wrote no export")?;
    serde_json::from_str(&text).context("the export is no JSON")
}

/// Returns true if a clean report covers as much as the report on the undamaged trace, which has to be clean,
/// too.
fn is_covered(case: &Case, fixture: &Fixture, report: &Value) -> Result<bool> {
    static BEFORE: Mutex<BTreeMap<String, Option<usize>>> = Mutex::new(BTreeMap::new());
    let count = |report: &Value| report["contributions"].as_array().map_or(0, Vec::len);
    let mut known = BEFORE.lock().ok().context("another case panicked")?;
    if !known.contains_key(&fixture.name) {
        let call = case.zprobe(["diagnose", "--output-format", "json"])?;
        let ended = call.args([fixtures::dir(&fixture.name)]).ended()?;
        let clean = ended.code()? == 0;
        let report: Value =
            serde_json::from_str(&ended.stdout).context("zprobe printed no JSON")?;
        known.insert(fixture.name.clone(), clean.then(|| count(&report)));
    }
    Ok(known[&fixture.name].is_some_and(|before| count(report) >= before))
}
