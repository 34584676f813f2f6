//! Time, trace size and memory of a run with many ranks on one machine.

use std::fmt;
use std::fs;

use anyhow::{Context, Result, anyhow};

use super::super::contender::Contender;
use super::super::memory::Memory;
use super::super::report::{mib, ratio, table as lined_up, time};
use super::super::sample::Sample;
use super::super::scratch::Scratch;
use super::super::{in_turns, release_dir};

/// The numbers of ranks to measure.
const RANKS: [usize; 3] = [2, 8, 64];

/// Measurements of runs with one number of ranks.
pub struct ManyRanks {
    ranks: usize,
    times: Sample,
    floor: Sample,
    trace_bytes: u64,
    memory: Memory,
}

/// Times each number of ranks in turns with a floor of the same number, then watches the ranks' memory.
pub fn measure(runs: usize, scratch: &Scratch) -> Result<Vec<ManyRanks>> {
    let release = release_dir()?;
    let pairs = RANKS.map(|ranks| {
        [Contender::run(&release, ranks, runs), Contender::fork_floor(&release, ranks, runs)]
    });
    let mut rows = Vec::new();
    for (ranks, pair) in RANKS.into_iter().zip(pairs) {
        let [times, floor] = <[Sample; 2]>::try_from(in_turns(&pair, scratch)?)
            .map_err(|_| anyhow!("in_turns returned other than two samples for two contenders"))?;
        let memory = Memory::measure(&pair[0], runs, scratch)?;
        let trace = scratch.dir().join("run/trace.jsonl");
        let trace_bytes = fs::metadata(trace).context("the run has left no trace")?.len();
        rows.push(ManyRanks { ranks, times, floor, trace_bytes, memory });
    }
    Ok(rows)
}

/// Writes the table: one row for each number of ranks.
pub fn table(f: &mut fmt::Formatter<'_>, rows: &[ManyRanks]) -> fmt::Result {
    let row = |row: &ManyRanks| {
        vec![
            format!("{} ranks", row.ranks),
            row.times.len().to_string(),
            time(row.times.median()),
            time(row.times.min()),
            time(row.floor.median()),
            ratio(row.times.median() / row.floor.median()),
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
        "floor",
        "÷ floor",
        "trace",
        "peak RSS of a rank",
        "PSS of a rank",
        "PSS of all processes",
    ];
    lined_up(f, &head, &rows)
}
