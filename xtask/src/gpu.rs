//! All that zprobe does on GPUs, run on this machine on the GPU and on the CPU, as a table for docs/gpu.md.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::bench::report::table;
use crate::bench::scratch::Scratch;
use crate::engines::{Environments, TESTED};
use crate::workspace;

/// The release of DeepSpeed that averages the boundary microbatch too early.
const BUGGY: &[&str] = &["torch==2.11.0", "deepspeed==0.18.9"];

/// The options of `cargo xtask gpu`.
#[derive(clap::Args)]
pub struct Options {
    /// Device of the ranks; `cpu` tries the list itself on a machine without a GPU
    #[arg(long, value_enum, default_value_t = Device::Cuda)]
    device: Device,

    /// Only rows whose arguments contain this
    #[arg(long, value_name = "SUBSTRING")]
    filter: Option<String>,
}

/// The device of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    Cuda,
    Cpu,
}

/// A run of the list, which is made on the device and on the CPU.
struct Row {
    args: &'static str,
    packages: &'static [&'static str],
    /// The codes of the findings that the run should have.
    expected: &'static [&'static str],
}

/// The list of runs: each engine with one rank on a GPU over NCCL, and with ranks that share a GPU over Gloo;
/// a fault; a bug of a release; races of copies to the host.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("--stage 1 --nproc-per-node 1"),
    row("--stage 1 --nproc-per-node 2 --backend gloo"),
    row("--stage 1 --nproc-per-node 4 --backend gloo"),
    row("--stage 2 --nproc-per-node 2 --backend gloo --dtype fp16 --overlap-comm"),
    row("--stage 2 --nproc-per-node 2 --backend gloo --offload cpu --overlap-comm"),
    row("--stage 2 --nproc-per-node 2 --backend gloo --offload cpu --overlap-comm --observe outcome --repeat 10"),
    Row { expected: &["ZP101"], ..row("--stage 1 --nproc-per-node 2 --backend gloo --inject boundary-leak") },
    row("--engine ddp --nproc-per-node 1"),
    row("--engine ddp --nproc-per-node 2 --backend gloo"),
    row("--engine ddp --nproc-per-node 2 --backend gloo --observe outcome --repeat 10"),
    row("--engine fsdp2 --nproc-per-node 1"),
    row("--engine fsdp2 --nproc-per-node 2 --backend gloo"),
    row("--engine deepspeed --stage 1 --nproc-per-node 1"),
    row("--engine deepspeed --stage 1 --nproc-per-node 2 --backend gloo"),
    row("--engine deepspeed --stage 2 --nproc-per-node 2 --backend gloo --dtype fp16"),
    row("--engine deepspeed --stage 2 --nproc-per-node 2 --backend gloo --offload cpu --repeat 5"),
    row("--engine deepspeed --stage 3 --nproc-per-node 2 --backend gloo"),
    Row { packages: BUGGY, expected: &["ZP101"], ..row("--engine deepspeed --stage 1 --nproc-per-node 2 --backend gloo") },
];

const fn row(args: &'static str) -> Row {
    Row { args, packages: TESTED, expected: &[] }
}

/// The outcome of one run.
struct Made {
    time: Duration,
    /// The exit code, which is 2 if nothing ran; `None` after a signal.
    code: Option<i32>,
    /// The report; `None` if nothing ran.
    report: Option<Value>,
    /// The last line on standard error.
    said: String,
    /// The median time of the steps after the first, by the ranks' own clocks, in milliseconds; `None`
    /// without a trace.
    step_ms: Option<f64>,
}

/// Makes each run of the list, and prints a line after each run. Returns the table, and true if all rows are
/// as they should be.
pub fn measure(options: &Options) -> Result<(String, bool)> {
    let environments = Environments::prepare()?;
    let scratch = Scratch::new(workspace::target_dir()?.join("gpu"))?;
    let (mut rows, mut all_well) = (Vec::new(), true);
    for row in ROWS {
        if options.filter.as_ref().is_some_and(|part| !row.args.contains(part.as_str())) {
            continue;
        }
        let python = environments.python_with(row.packages)?;
        let there = run(&environments, &scratch, row.args, &python, options.device)?;
        let here = run(&environments, &scratch, row.args, &python, Device::Cpu)?;
        let codes = there.codes();
        let as_expected = there.report.is_some() && codes == row.expected;
        let same = there.report.is_some() && there.weights() == here.weights();
        all_well &= as_expected && same;
        let release =
            row.packages.iter().find(|it| row.args.contains("deepspeed") && it.contains("speed"));
        let name =
            format!("`{}`{}", row.args, release.map_or_else(String::new, |it| format!(" {it}")));
        eprintln!("{name}: {}", there.verdict());
        let overhead = match (there.step_ms, here.step_ms) {
            (Some(there), Some(here)) => format!("{there:.1} ms, {here:.1} ms"),
            _ => "-".to_owned(),
        };
        rows.push(vec![
            name,
            if as_expected { there.verdict() } else { format!("**{}**", there.verdict()) },
            if same { "the same".to_owned() } else { "**others**".to_owned() },
            format!("{:.1} s", there.time.as_secs_f64()),
            overhead,
        ]);
    }
    ensure!(!rows.is_empty(), "--filter leaves no run");
    let head = ["run", "verdict", "weights, against the CPU", "time", "a step, and on the CPU"];
    Ok((Table { head: &head, rows: &rows }.to_string(), all_well))
}

struct Table<'a> {
    head: &'a [&'a str],
    rows: &'a [Vec<String>],
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table(f, self.head, self.rows)
    }
}

fn run(
    environments: &Environments,
    scratch: &Scratch,
    args: &str,
    python: &Path,
    device: Device,
) -> Result<Made> {
    let out = scratch.empty("run")?.join("run");
    let mut command: Command = environments.zprobe()?;
    command.arg("run").args(args.split_whitespace()).arg("--python").arg(python);
    command.args(["--device", if device == Device::Cuda { "cuda" } else { "cpu" }]);
    command.args(["--steps", "5", "--output-format", "json", "--out"]).arg(&out);
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output().context("cannot start zprobe")?;
    let time = started.elapsed();
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(Made {
        time,
        code: output.status.code(),
        report: serde_json::from_slice(&output.stdout).ok(),
        said: said.trim().lines().last().unwrap_or_default().to_owned(),
        step_ms: step_ms(&out),
    })
}

/// The median time of the steps after the first, over all ranks, in milliseconds.
fn step_ms(run_dir: &Path) -> Option<f64> {
    let repeat: PathBuf = run_dir.join("repeat-0");
    let dir = if repeat.is_dir() { repeat } else { run_dir.to_owned() };
    let text = fs::read_to_string(dir.join("trace.jsonl")).ok()?;
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let timed =
        records.filter(|it| it["event"]["type"] == "step-timed" && it["event"]["step"] != 0);
    let mut times: Vec<u64> = timed.filter_map(|it| it["event"]["total_ns"].as_u64()).collect();
    times.sort_unstable();
    times.get(times.len() / 2).map(|&ns| ns as f64 / 1e6)
}

impl Made {
    fn codes(&self) -> Vec<&str> {
        let findings = self.report.iter().flat_map(|it| it["findings"].as_array()).flatten();
        findings.filter_map(|finding| finding["code"].as_str()).collect()
    }

    fn verdict(&self) -> String {
        match &self.report {
            Some(report) => [report["verdict"].as_str().unwrap_or_default()]
                .into_iter()
                .chain(self.codes())
                .collect::<Vec<_>>()
                .join(" "),
            None => format!("exit code {:?}: {}", self.code, self.said),
        }
    }

    /// The weights of all buffers that were read; `None` without a report.
    fn weights(&self) -> Option<Vec<[Value; 5]>> {
        let entries = self.report.as_ref()?["contributions"].as_array()?;
        let of = |it: &Value| {
            ["step", "rank", "point", "microbatch", "weights"].map(|name| it[name].clone())
        };
        Some(entries.iter().map(of).collect())
    }
}
