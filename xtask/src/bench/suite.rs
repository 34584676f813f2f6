//! The time of a suite over one warm pool, compared with one `zprobe run` for each of its probes, and with
//! one run of the script for each.

use std::ffi::OsString;
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

/// All measurements of suites.
pub struct Report {
    command: String,
    machine: Machine,
    suites: Vec<Times>,
}

/// The contenders on one engine.
struct Suite {
    engine: &'static str,
    /// The whole suite, run by `zprobe check`.
    check: Contender,
    /// Each probe of the suite, run by `zprobe run`.
    runs: Vec<Contender>,
    /// The script on the same interpreter; `None` if the script is not measured.
    script: Option<Contender>,
}

/// The times of a suite on one engine.
struct Times {
    engine: &'static str,
    probes: usize,
    check: Sample,
    runs: Sample,
    /// The times of single runs of the script.
    script: Sample,
}

/// Measures the standard suite on the native engine, and on the DeepSpeed of the script.
pub fn measure(options: &Options) -> Result<Report> {
    ensure!(options.runs > 0 && options.seed_runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let release = release_dir()?;
    let script = match (&options.seed_script, options.python.first()) {
        (Some(file), Some(python)) => Some(SeedScript::for_cpu(file, python, &scratch)?),
        _ => None,
    };
    let native = Suite::new(&release, "native", None)?;
    let mut suites = vec![native.measure(options.runs, options.runs, &scratch)?];
    if let Some(script) = &script {
        let suite = Suite::new(&release, "deepspeed", Some(script))?;
        // All probes, each in a run by itself, take minutes together.
        suites.push(suite.measure(options.seed_runs, 1, &scratch)?);
    }
    let machine = Machine::this(script.map(|script| script.versions))?;
    Ok(Report { command: options.command(), machine, suites })
}

impl Suite {
    /// The standard suite on an engine, and the script if its interpreter has that engine.
    fn new(release: &Path, engine: &'static str, script: Option<&SeedScript>) -> Result<Self> {
        let zprobe = release.join("zprobe");
        let mut words: Vec<OsString> = vec!["--no-config".into()];
        words.extend(script.into_iter().flat_map(|it| ["--python".into(), it.python().into()]));
        let script = script.map(|script| script.contender(0));
        let mut list = Command::new(&zprobe);
        list.args(["check", "--list", "--engine", engine]).args(&words);
        let list = output(&mut list)?;
        let runs = list.lines().map(|line| {
            let (name, own) =
                line.split_once("zprobe run ").context("a probe lacks its command")?;
            let own: Vec<String> = own.split_whitespace().map(str::to_owned).collect();
            let (zprobe, words) = (zprobe.clone(), words.clone());
            Ok(Contender::new(name.trim(), 0, move |scratch| {
                let mut command = Command::new(&zprobe);
                command.arg("run").args(&own).args(&words).arg("--out").arg(scratch.empty("run")?);
                Ok(command)
            }))
        });
        let runs = runs.collect::<Result<_>>()?;
        let check = Contender::new(format!("zprobe check on {engine}"), 0, move |scratch| {
            let mut command = Command::new(&zprobe);
            command.args(["check", "--engine", engine]).args(&words);
            command.arg("--out").arg(scratch.empty("check")?);
            Ok(command)
        });
        Ok(Self { engine, check, runs, script })
    }

    /// Times the suite and the script in `rounds` turns; the first `singly` turns also run each probe by
    /// itself. One run each of the suite, of the first probe and of the script fills caches first, and is not
    /// counted.
    fn measure(&self, rounds: usize, singly: usize, scratch: &Scratch) -> Result<Times> {
        self.check.time(scratch)?;
        for first in self.runs.first().into_iter().chain(&self.script) {
            first.time(scratch)?;
        }
        let mut check = Sample::default();
        let mut runs = Sample::default();
        let mut script = Sample::default();
        for round in 1..=rounds {
            eprintln!("suite on {}, {round} of {rounds}", self.engine);
            check.add(self.check.time(scratch)?);
            if round <= singly {
                runs.add(self.runs.iter().map(|run| run.time(scratch)).sum::<Result<Duration>>()?);
            }
            if let Some(contender) = &self.script {
                script.add(contender.time(scratch)?);
            }
        }
        Ok(Times { engine: self.engine, probes: self.runs.len(), check, runs, script })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        let head = [
            "a suite, 2 ranks",
            "probes",
            "zprobe check",
            "rounds",
            "a zprobe run each",
            "rounds",
            "÷ check",
            "the script each",
            "÷ check",
        ];
        // Nothing in the script depends on the engine of a suite.
        let script = self.suites.iter().map(|suite| &suite.script).find(|times| !times.is_empty());
        let one = script.map_or(f64::NAN, Sample::median);
        let rows: Vec<Vec<String>> = self.suites.iter().map(|suite| suite.row(one)).collect();
        table(f, &head, &rows)?;
        match script {
            Some(times) => writeln!(
                f,
                "\nThe script: {}, the median of {}, times the number of probes.",
                time(one),
                times.len()
            ),
            None => Ok(()),
        }
    }
}

impl Times {
    /// The suite's row of the table; `script` is the time of one run of the script.
    fn row(&self, script: f64) -> Vec<String> {
        let check = self.check.median();
        let mut row = vec![
            self.engine.to_owned(),
            self.probes.to_string(),
            time(check),
            self.check.len().to_string(),
        ];
        let runs = self.runs.median();
        row.extend([time(runs), self.runs.len().to_string(), ratio(runs / check)]);
        let script = script * self.probes as f64;
        row.extend(if script.is_finite() {
            [time(script), ratio(script / check)]
        } else {
            ["not run".to_owned(), String::new()]
        });
        row
    }
}
