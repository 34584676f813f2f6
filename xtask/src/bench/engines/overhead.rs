//! What observation costs a step, as the ranks themselves measure it.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::contender::{Contender, RANKS};
use super::super::release_dir;
use super::super::report::{self, ratio, time};
use super::super::sample::Sample;
use super::super::scratch::Scratch;
use super::super::seed_script::SeedScript;

/// Elements of the model, at least.
const PARAMETERS: &str = "50000000";

/// Steps of a run. The first one warms up, and is not counted.
const STEPS: &str = "5";

/// Engines, by name and with the words behind `zprobe run`.
const ENGINES: [(&str, &[&str]); 3] = [
    ("deepspeed, stage 1", &["--engine", "deepspeed", "--stage", "1"]),
    ("ddp", &["--engine", "ddp"]),
    ("fsdp2", &["--engine", "fsdp2"]),
];

/// Steps of one engine with and without observation.
pub struct Overhead {
    name: String,
    /// Everything that a rank does in a step that is observed in full.
    observed: Sample,
    /// The engine's own part of the step, where it is not observed.
    bare: Sample,
    /// The engine's own part of the step, with what observes it inside.
    inside: Sample,
}

/// Measures all engines in turns: DeepSpeed with every Python, the others with the last.
pub fn measure(scripts: &[SeedScript], runs: usize, scratch: &Scratch) -> Result<Vec<Overhead>> {
    let release = release_dir()?;
    let mut rows = Vec::new();
    for (number, script) in scripts.iter().enumerate() {
        for (name, words) in ENGINES {
            if name.starts_with("deepspeed") || number + 1 == scripts.len() {
                rows.push((script, words, Overhead::new(name, script)));
            }
        }
    }
    for round in 1..=runs {
        eprintln!("round {round} of {runs}: steps of a large model");
        for (script, words, row) in &mut rows {
            for observe in ["outcome", "full"] {
                let steps = steps(&release, script, words, observe, scratch)
                    .with_context(|| format!("{}, --observe {observe}", row.name))?;
                for (engine, total) in steps {
                    if observe == "full" {
                        row.inside.add(engine);
                        row.observed.add(total);
                    } else {
                        row.bare.add(engine);
                    }
                }
            }
        }
    }
    Ok(rows.into_iter().map(|(_, _, row)| row).collect())
}

/// Runs once; times of each step but the first, on the slowest rank: the engine's, and all.
fn steps(
    release: &Path,
    script: &SeedScript,
    words: &'static [&'static str],
    observe: &'static str,
    scratch: &Scratch,
) -> Result<Vec<(Duration, Duration)>> {
    let (zprobe, python) = (release.join("zprobe"), script.python().to_path_buf());
    let mut run = Contender::new("zprobe run", 1, move |scratch| {
        let mut command = Command::new(&zprobe);
        command.arg("run").args(words).args(["--ga", "4", "--steps", STEPS]);
        command.args(["--parameters", PARAMETERS, "--observe", observe]);
        command.arg("--nproc-per-node").arg(RANKS.to_string());
        command.arg("--python").arg(&python).arg("--out").arg(scratch.empty("run")?);
        Ok(command)
    });
    // Findings, of a release that has the bug, are no failure.
    run.proof = Some("Contribution weights");
    run.time(scratch)?;
    let trace = scratch.read("run/trace.jsonl")?;
    slowest(&trace)
}

/// Times of each step but the first, from a trace.
fn slowest(trace: &str) -> Result<Vec<(Duration, Duration)>> {
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for line in trace.lines().filter(|line| line.contains("step-timed")) {
        let record: Value = serde_json::from_str(line).context("the trace is no JSON")?;
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

/// One row for each engine; medians.
pub fn table(f: &mut fmt::Formatter<'_>, overheads: &[Overhead]) -> fmt::Result {
    let rows: Vec<Vec<String>> = overheads.iter().map(Overhead::row).collect();
    let head = ["a step of 50 M parameters", "steps", "bare", "observed", "ratio", "of it inside"];
    report::table(f, &head, &rows)
}

impl Overhead {
    fn new(name: &str, script: &SeedScript) -> Self {
        Self {
            name: format!("{name} ({})", script.versions),
            observed: Sample::default(),
            bare: Sample::default(),
            inside: Sample::default(),
        }
    }

    fn row(&self) -> Vec<String> {
        let bare = self.bare.median();
        vec![
            self.name.clone(),
            self.observed.len().to_string(),
            time(bare),
            time(self.observed.median()),
            ratio(self.observed.median() / bare),
            ratio(self.inside.median() / bare),
        ]
    }
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
