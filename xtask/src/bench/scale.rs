//! Recording and diagnosis of many ranks: the time of both, and the memory of the diagnosis, on traces of
//! simulated runs, which `simulate-trace` writes.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::machine::Machine;
use super::processes::kilobytes;
use super::report::{table, time};
use super::sample::Sample;
use super::scratch::Scratch;
use super::{Options, release_dir};
use crate::workspace;

/// The numbers of ranks of the traces.
const RANKS: &[usize] = &[1024, 4096, 16_384];

/// The number of microbatches per step, and the number of steps.
const GA: usize = 4;
const STEPS: usize = 2;

/// All measurements, by number of ranks.
pub struct Report {
    command: String,
    machine: Machine,
    rows: Vec<Row>,
}

struct Row {
    ranks: usize,
    trace_bytes: u64,
    /// The time to write the trace from the ranks' records, in milliseconds.
    recorded: f64,
    times: Sample,
    /// The peak RSS of the diagnosis, in kB.
    peak_rss: u64,
    /// The verdict of the diagnosis.
    verdict: String,
}

/// Writes the traces, and times their diagnosis.
pub fn measure(options: &Options) -> Result<Report> {
    ensure!(options.runs > 0, "at least one run is needed");
    let scratch = Scratch::new(workspace::target_dir()?.join("bench"))?;
    let rows = RANKS.iter().map(|&ranks| row(ranks, options.runs, &scratch));
    Ok(Report {
        command: options.command(),
        machine: Machine::this(None)?,
        rows: rows.collect::<Result<_>>()?,
    })
}

fn row(ranks: usize, runs: usize, scratch: &Scratch) -> Result<Row> {
    eprintln!("{ranks} ranks");
    let dir = scratch.empty("trace")?;
    // One gradient of one rank is lost: a trace with a finding takes longer than a clean one.
    let simulated = Command::new(release_dir()?.join("examples/simulate-trace"))
        .args(["--ranks", &ranks.to_string(), "--ga", &GA.to_string()])
        .args(["--steps", &STEPS.to_string()])
        .args(["--lose", &format!("0,{},1", ranks / 3), "--out"])
        .arg(&dir)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start simulate-trace")?;
    ensure!(simulated.status.success(), "simulate-trace failed; see the messages above");
    let seconds: f64 = String::from_utf8_lossy(&simulated.stdout).trim().parse()?;
    let trace_bytes = fs::metadata(dir.join("trace.jsonl"))?.len();
    let mut row = Row {
        ranks,
        trace_bytes,
        recorded: 1e3 * seconds,
        times: Sample::default(),
        peak_rss: 0,
        verdict: String::new(),
    };
    // Round 0 fills caches, so its times are not counted.
    for round in 0..=runs {
        let (time, peak_rss, verdict) = diagnose(&dir, scratch)?;
        if round > 0 {
            row.times.add(time);
        }
        row.peak_rss = row.peak_rss.max(peak_rss);
        row.verdict = verdict;
    }
    fs::remove_dir_all(&dir).context("cannot remove a trace")?;
    Ok(row)
}

/// Diagnoses the trace once, and returns the time, the peak RSS in kB, and the verdict.
fn diagnose(dir: &Path, scratch: &Scratch) -> Result<(Duration, u64, String)> {
    let started = Instant::now();
    let mut child = Command::new(workspace::zprobe()?)
        .arg("diagnose")
        .arg(dir)
        .args(["--output-format", "concise", "--exit-zero"])
        .stdin(Stdio::null())
        .stdout(scratch.create("stdout.log")?)
        .spawn()
        .context("cannot start zprobe")?;
    let mut peak_rss = 0;
    let status = loop {
        // The peak is read while the process runs: `/proc` no longer shows the peak of a process that has
        // ended.
        peak_rss = kilobytes(child.id(), "status", "VmHWM").unwrap_or(0).max(peak_rss);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let time = started.elapsed();
    ensure!(status.success(), "zprobe show failed; see the messages above");
    let said = scratch.read("stdout.log")?;
    Ok((time, peak_rss, said.lines().next().unwrap_or_default().to_owned()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}", self.command, self.machine)?;
        let row = |row: &Row| {
            vec![
                row.ranks.to_string(),
                format!("{:.1} MB", row.trace_bytes as f64 / 1e6),
                time(row.recorded),
                time(row.times.median()),
                time(row.times.min()),
                format!("{:.2} ms", row.times.median() / row.ranks as f64),
                format!("{:.0} MiB", row.peak_rss as f64 / 1024.0),
                row.verdict.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        let head =
            ["ranks", "trace", "recorded", "diagnosed", "min", "a rank", "peak RSS", "verdict"];
        table(f, &head, &rows)
    }
}
