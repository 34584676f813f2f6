//! What many ranks on one machine take.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};

use super::super::contender::Contender;
use super::super::memory::Memory;
use super::super::report::{mib, table as lined_up, time};
use super::super::sample::Sample;
use super::super::scratch::Scratch;
use super::super::{in_turns, release_dir};

/// Numbers of ranks.
const RANKS: [usize; 3] = [2, 8, 64];

/// A number of ranks, and what they took.
pub struct ManyRanks {
    ranks: usize,
    times: Sample,
    trace_bytes: u64,
    memory: Memory,
}

/// Times all of them in turns, then watches their memory.
pub fn measure(runs: usize, scratch: &Scratch) -> Result<Vec<ManyRanks>> {
    let release = release_dir()?;
    let contenders = RANKS.map(|ranks| Contender::run(&release, ranks, runs));
    let times = in_turns(&contenders, scratch)?;
    let rows = contenders.iter().zip(RANKS).zip(times).map(|((contender, ranks), times)| {
        let memory = Memory::measure(contender, runs, scratch)?;
        let trace = scratch.dir().join("run/trace.jsonl");
        let trace_bytes = fs::metadata(trace).context("a run without a trace")?.len();
        Ok(ManyRanks { ranks, times, trace_bytes, memory })
    });
    rows.collect()
}

/// One row for each number of ranks.
pub fn table(f: &mut fmt::Formatter<'_>, rows: &[ManyRanks]) -> fmt::Result {
    let row = |row: &ManyRanks| {
        vec![
            format!("{} ranks", row.ranks),
            row.times.len().to_string(),
            time(row.times.median()),
            time(row.times.min()),
            format!("{:.1} MB", row.trace_bytes as f64 / 1e6),
            mib(row.memory.peak_rss),
            mib(row.memory.pss),
            mib(row.memory.together),
        ]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(row).collect();
    let head = [
        "`zprobe run --stage 1 --ga 4`",
        "runs",
        "median",
        "min",
        "trace",
        "peak RSS of a rank",
        "PSS of a rank",
        "PSS of all processes",
    ];
    lined_up(f, &head, &rows)
}
