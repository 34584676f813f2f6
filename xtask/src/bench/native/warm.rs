//! Runs over warm ranks: one process has loaded libtorch, and every run forks its ranks from that process.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::release_dir;
use super::super::report::{ratio, table, time};
use super::super::sample::Sample;
use super::super::scratch::Scratch;

/// The number of configurations that are run: the first ones of the lattice.
const CONFIGURATIONS: usize = 100;

/// Times of the same configurations by `zprobe sweep` and by one `zprobe run` each.
pub struct Warm {
    configurations: usize,
    /// Times of the whole `zprobe sweep`, one for each round.
    sweep: Sample,
    /// Times of all `zprobe run` commands one after the other, one for each round.
    runs: Sample,
}

impl Warm {
    /// Measures the sweep and the single runs in turns.
    pub fn measure(rounds: usize, scratch: &Scratch) -> Result<Self> {
        let zprobe = release_dir()?.join("zprobe");
        let mut warm =
            Self { configurations: 0, sweep: Sample::default(), runs: Sample::default() };
        // Round 0 fills caches, so its times are not counted.
        for round in 0..=rounds {
            eprintln!("round {round} of {rounds}: {CONFIGURATIONS} configurations, warm and cold");
            let (sweep, commands) = sweep(&zprobe, scratch)?;
            let runs = one_by_one(&zprobe, &commands, scratch)?;
            if round > 0 {
                warm.sweep.add(sweep);
                warm.runs.add(runs);
            }
            warm.configurations = commands.len();
        }
        Ok(warm)
    }
}

/// The time of a sweep, and its configurations as arguments of `zprobe`.
fn sweep(zprobe: &Path, scratch: &Scratch) -> Result<(Duration, Vec<Vec<String>>)> {
    let started = Instant::now();
    let output = Command::new(zprobe)
        .args(["sweep", "--engine", "native", "--output-format", "json", "--limit"])
        .arg(CONFIGURATIONS.to_string())
        .current_dir(scratch.dir())
        .stderr(scratch.create("stderr.log")?)
        .output()
        .context("cannot start zprobe sweep")?;
    let time = started.elapsed();
    ensure!(output.status.success(), "zprobe sweep failed; see stderr.log in target/bench");
    let said: Value =
        serde_json::from_slice(&output.stdout).context("the sweep printed no JSON")?;
    let rows = said["rows"].as_array().context("the sweep has no rows")?;
    Ok((time, rows.iter().map(arguments).collect::<Result<_>>()?))
}

/// The arguments of `zprobe` in the command of a sweep's row.
fn arguments(row: &Value) -> Result<Vec<String>> {
    let command = row["command"].as_str().context("a row of the sweep has no command")?;
    let words = command.strip_prefix("zprobe ").context("a row's command is not one of zprobe")?;
    Ok(words.split(' ').map(str::to_owned).collect())
}

/// The time of all commands, run one after the other.
fn one_by_one(zprobe: &Path, commands: &[Vec<String>], scratch: &Scratch) -> Result<Duration> {
    let mut whole = Duration::ZERO;
    for arguments in commands {
        let dir = scratch.empty("run")?;
        let started = Instant::now();
        let status = Command::new(zprobe)
            .args(arguments)
            .arg("--out")
            .arg(&dir)
            .stdout(Stdio::null())
            .stderr(scratch.create("stderr.log")?)
            .status()
            .context("cannot start zprobe run")?;
        whole += started.elapsed();
        ensure!(status.success(), "zprobe {} failed", arguments.join(" "));
    }
    Ok(whole)
}

impl fmt::Display for Warm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.configurations as f64;
        let cold = self.runs.median();
        let row = |name: &str, sample: &Sample| {
            let whole = sample.median();
            vec![
                name.to_owned(),
                self.configurations.to_string(),
                sample.len().to_string(),
                time(whole),
                time(whole / count),
                format!("{:.1}", count / (whole / 1e3)),
                ratio(cold / whole),
            ]
        };
        let rows = vec![
            row("cold: one `zprobe run` each", &self.runs),
            row("warm: `zprobe sweep`, one pool", &self.sweep),
        ];
        let head = [
            "runs of the native engine",
            "configurations",
            "times",
            "all of them",
            "a run",
            "runs per second",
            "÷ cold",
        ];
        table(f, &head, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_how_to_run_it_alone() {
        let row = serde_json::json!({ "command": "zprobe run --stage 1 --ga 4" });
        assert_eq!(arguments(&row).unwrap(), ["run", "--stage", "1", "--ga", "4"]);
        assert!(arguments(&serde_json::json!({})).is_err());
    }
}
