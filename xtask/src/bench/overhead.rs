//! The cost of observation for a step of a large model, as the ranks themselves measure it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::contender::{Contender, RANKS};
use super::release_dir;
use super::report::{ratio, time};
use super::sample::Sample;
use super::scratch::Scratch;

/// The least number of elements of the model.
const PARAMETERS: &str = "50000000";

/// The number of steps of a run. The first step warms up and is not counted.
const STEPS: &str = "5";

/// The columns of every table of overheads.
pub const HEAD: [&str; 6] =
    ["a step of 50 M parameters", "steps", "bare", "observed", "ratio", "of it inside"];

/// Times of one engine's steps with and without observation.
pub struct Overhead {
    /// The name of the engine's row in the table.
    name: String,
    /// The arguments of `zprobe run` that select the engine.
    words: &'static [&'static str],
    /// The Python that has the engine; `None` for the native engine.
    python: Option<PathBuf>,
    /// Times of a whole step under full observation, the engine's part and zprobe's.
    observed: Sample,
    /// Times of the engine's part of a step without observation.
    bare: Sample,
    /// Times of the engine's part of an observed step, including the observation inside of it.
    inside: Sample,
}

impl Overhead {
    /// The overhead of an engine that is not measured yet.
    pub fn of(name: String, words: &'static [&'static str], python: Option<&Path>) -> Self {
        Self {
            name,
            words,
            python: python.map(Path::to_path_buf),
            observed: Sample::default(),
            bare: Sample::default(),
            inside: Sample::default(),
        }
    }

    /// The median time of a step without observation, in milliseconds.
    pub fn bare(&self) -> f64 {
        self.bare.median()
    }

    /// The engine's row of the table, with medians.
    pub fn row(&self) -> Vec<String> {
        let bare = self.bare();
        vec![
            self.name.clone(),
            self.observed.len().to_string(),
            time(bare),
            time(self.observed.median()),
            ratio(self.observed.median() / bare),
            ratio(self.inside.median() / bare),
        ]
    }

    /// Runs the engine once without observation and once with it.
    fn add(&mut self, release: &Path, scratch: &Scratch) -> Result<()> {
        for observe in ["outcome", "full"] {
            let steps = self
                .steps(release, observe, scratch)
                .with_context(|| format!("{}, --observe {observe}", self.name))?;
            for (engine, total) in steps {
                if observe == "full" {
                    self.inside.add(engine);
                    self.observed.add(total);
                } else {
                    self.bare.add(engine);
                }
            }
        }
        Ok(())
    }

    /// Runs the engine once, and returns two times of each step but the first, on the slowest rank: the time
    /// of the engine's part, and that of the whole step.
    fn steps(
        &self,
        release: &Path,
        observe: &'static str,
        scratch: &Scratch,
    ) -> Result<Vec<(Duration, Duration)>> {
        let (zprobe, words, python) = (release.join("zprobe"), self.words, self.python.clone());
        let mut run = Contender::new("zprobe run", 1, move |scratch| {
            let mut command = Command::new(&zprobe);
            command.arg("run").args(words).args(["--ga", "4", "--steps", STEPS]);
            command.args(["--parameters", PARAMETERS, "--observe", observe]);
            command.arg("--nproc-per-node").arg(RANKS.to_string());
            command
                .args(python.iter().flat_map(|python| ["--python".as_ref(), python.as_os_str()]));
            command.arg("--out").arg(scratch.empty("run")?);
            Ok(command)
        });
        // The exit status reports findings, which are no failure here: some releases have the bug.
        run.proof = Some("Contribution weights");
        run.time(scratch)?;
        slowest(&scratch.read("run/trace.jsonl")?)
    }
}

/// Measures all overheads in turns.
pub fn measure(overheads: &mut [Overhead], runs: usize, scratch: &Scratch) -> Result<()> {
    let release = release_dir()?;
    for round in 1..=runs {
        eprintln!("round {round} of {runs}: steps of a large model");
        overheads.iter_mut().try_for_each(|overhead| overhead.add(&release, scratch))?;
    }
    Ok(())
}

/// Two times of each step but the first, on the slowest rank, from a trace: the time of the engine's part,
/// and that of the whole step.
fn slowest(trace: &str) -> Result<Vec<(Duration, Duration)>> {
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for line in trace.lines().filter(|line| line.contains("step-timed")) {
        let record: Value = serde_json::from_str(line).context("a line of the trace is no JSON")?;
        let event = &record["event"];
        let number = |field: &str| event[field].as_u64().with_context(|| format!("no {field}"));
        let step = usize::try_from(number("step")?)?;
        if steps.len() <= step {
            steps.resize(step + 1, (0, 0));
        }
        let (engine, total) = &mut steps[step];
        *engine = number("engine_ns")?.max(*engine);
        *total = number("total_ns")?.max(*total);
    }
    ensure!(steps.len() > 1, "no step was timed");
    let nanos = Duration::from_nanos;
    Ok(steps[1..].iter().map(|&(engine, total)| (nanos(engine), nanos(total))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_as_slow_as_its_slowest_rank_and_the_first_does_not_count() {
        let line = |step: u64, engine: u64, total: u64| {
            format!(
                r#"{{"event": {{"type": "step-timed", "step": {step}, "engine_ns": {engine}, "total_ns": {total}}}}}"#
            )
        };
        let trace = [line(0, 9, 9), line(0, 8, 9), line(1, 3, 5), "{}".into(), line(1, 4, 4)];
        let steps = slowest(&trace.join("\n")).unwrap();
        assert_eq!(steps, [(Duration::from_nanos(4), Duration::from_nanos(5))]);
        assert!(slowest("{}").is_err());
    }
}
