//! How long a suite takes in one warm pool, beside one `zprobe run` for each of its probes and one run of
//! the script for each.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::contender::Contender;
use super::machine::{Machine, output};
use super::report::{ratio, table, time};
use super::sample::Sample;
use super::scratch::Scratch;
use super::seed_script::SeedScript;
use super::{Options, release_dir};
use crate::workspace;

/// Everything that was measured.
pub struct Report {
    command: String,
    machine: Machine,
    probes: usize,
    /// `zprobe check`.
    check: Sample,
    /// A `zprobe run` for each probe, one after the other.
    runs: Sample,
    /// One run of the script.
    script: Option<Sample>,
}

/// Measures the standard suite on the native engine.
pub fn measure(options: &Options) -> Result<Report> {
    ensure!(options.runs > 0 && options.seed_runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let zprobe = release_dir()?.join("zprobe");
    let script = match (&options.seed_script, options.python.first()) {
        (Some(file), Some(python)) => Some(SeedScript::for_cpu(file, python, &scratch)?),
        _ => None,
    };
    let versions = script.as_ref().map(|script| script.versions.clone());
    let script = script.map(|script| script.contender(options.seed_runs));
    let check = check(&zprobe);
    let probes = probes(&zprobe)?;
    let (mut checks, mut runs) = (Sample::default(), Sample::default());
    let mut scripts = script.as_ref().map(|_| Sample::default());
    // In turns; round 0 fills caches and is not counted.
    for round in 0..=options.runs.max(options.seed_runs) {
        eprintln!("round {round}");
        if round <= options.runs {
            let check = check.time(&scratch)?;
            let run = probes.iter().map(|run| run.time(&scratch)).sum::<Result<Duration>>()?;
            if round > 0 {
                checks.add(check);
                runs.add(run);
            }
        }
        if let (Some(script), Some(times)) = (&script, &mut scripts)
            && round <= options.seed_runs
        {
            let time = script.time(&scratch)?;
            if round > 0 {
                times.add(time);
            }
        }
    }
    Ok(Report {
        command: options.command(),
        machine: Machine::this(versions)?,
        probes: probes.len(),
        check: checks,
        runs,
        script: scripts,
    })
}

/// The whole suite over one pool.
fn check(zprobe: &Path) -> Contender {
    let zprobe = zprobe.to_owned();
    Contender::new("zprobe check", 0, move |scratch| {
        let mut command = Command::new(&zprobe);
        command.args(["check", "--no-config", "--engine", "native", "--out"]);
        command.arg(scratch.empty("check")?);
        Ok(command)
    })
}

/// Each of its probes by itself, as `zprobe check --list` says.
fn probes(zprobe: &Path) -> Result<Vec<Contender>> {
    let mut list = Command::new(zprobe);
    list.args(["check", "--no-config", "--engine", "native", "--list"]);
    let probe = |line: &str| {
        let (name, words) = line.split_once("zprobe run ").context("not a line of a list")?;
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let zprobe = zprobe.to_owned();
        Ok(Contender::new(name.trim(), 0, move |scratch| {
            let mut command = Command::new(&zprobe);
            command.args(["run", "--no-config"]).args(&words);
            command.arg("--out").arg(scratch.empty("run")?);
            Ok(command)
        }))
    };
    output(&mut list)?.lines().map(probe).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        let count = self.probes;
        let all = self.check.median();
        let row = |name: String, millis: f64, runs: usize| {
            let each = millis / count as f64;
            vec![name, time(millis), runs.to_string(), time(each), ratio(millis / all)]
        };
        let mut rows = vec![
            row("`zprobe check --engine native`".to_owned(), all, self.check.len()),
            row(format!("{count} times `zprobe run`"), self.runs.median(), self.runs.len()),
        ];
        if let Some(script) = &self.script {
            let scaled = script.median() * count as f64;
            rows.push(row(format!("{count} times the script, from one"), scaled, script.len()));
        }
        let what = format!("{count} probes, 2 ranks each");
        table(f, &[&what, "median", "runs", "for each probe", "÷ zprobe check"], &rows)
    }
}
