//! The trace, in whole lines, cut to a size.
//!
//! Buffers make a trace large. Every other record stays as long as there is room; the remaining
//! room is divided equally among the ranks, whose first buffers stay.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;

use zprobe_model::run_dir;
use zprobe_model::trace::{Event, LONGEST_LINE, Record, TRACE_FILE};
use zprobe_redact::Redactor;

/// A trace that was cut to a size.
#[derive(Debug, Default)]
pub struct Cut {
    /// Whole lines.
    pub text: String,
    /// Number of records that were left out, by sender.
    pub left_out: BTreeMap<Option<usize>, usize>,
    /// Size of the whole trace in bytes.
    pub whole: u64,
}

impl Cut {
    /// Sentence on what is missing; none if nothing is.
    pub fn describe(&self) -> Option<String> {
        if self.left_out.is_empty() {
            return None;
        }
        let of = |(sender, count): (&Option<usize>, &usize)| match sender {
            Some(rank) => format!("{count} of rank {rank}"),
            None => format!("{count} of the launcher"),
        };
        let left_out: Vec<String> = self.left_out.iter().map(of).collect();
        Some(format!(
            "cut to {} of {} bytes: left out were {} records ({}); a report made from it says less",
            self.text.len(),
            self.whole,
            self.left_out.values().sum::<usize>(),
            left_out.join(", "),
        ))
    }
}

/// A line that may be left out.
struct Line {
    rank: Option<usize>,
    length: u64,
    is_buffer: bool,
}

/// Calls `each` with every record of the trace of the run directory `dir` that can be parsed.
///
/// # Errors
/// When the file cannot be read.
pub fn each_record(dir: &Path, mut each: impl FnMut(&Record)) -> io::Result<()> {
    each_line(&dir.join(TRACE_FILE), |text| {
        if let Ok(record) = serde_json::from_str(text) {
            each(&record);
        }
    })
}

/// Reads and redacts the trace of the run directory `dir`, of which at most `most` bytes stay.
///
/// # Errors
/// When it cannot be read.
pub fn cut(dir: &Path, most: u64, redactor: &Redactor) -> io::Result<Cut> {
    let path = dir.join(TRACE_FILE);
    let mut lines = Vec::new();
    let mut whole = 0;
    each_line(&path, |text| {
        let record: Option<Record> = serde_json::from_str(text).ok();
        whole += text.len() as u64;
        lines.push(Line {
            rank: record.as_ref().and_then(|record| record.rank),
            length: text.len() as u64,
            is_buffer: record.is_some_and(|it| matches!(it.event, Event::Buffer { .. })),
        });
    })?;
    let stays = choose(&lines, most);
    let mut cut = Cut { whole, ..Cut::default() };
    let mut at = 0;
    each_line(&path, |text| {
        // The file may have grown since.
        if stays.get(at).copied().unwrap_or(false) {
            cut.text += &redacted(text, redactor);
        } else if let Some(line) = lines.get(at) {
            *cut.left_out.entry(line.rank).or_default() += 1;
        }
        at += 1;
    })?;
    Ok(cut)
}

/// Marks the lines that stay with true.
fn choose(lines: &[Line], most: u64) -> Vec<bool> {
    let mut left = most;
    let mut stays = vec![false; lines.len()];
    for (line, stays) in lines.iter().zip(&mut stays).filter(|(line, _)| !line.is_buffer) {
        *stays = line.length <= left;
        if *stays {
            left -= line.length;
        }
    }
    let buffers = || lines.iter().enumerate().filter(|(_, line)| line.is_buffer);
    let mut shares: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    for (_, line) in buffers() {
        *shares.entry(line.rank).or_default() += line.length;
    }
    let share = equal_share(shares.values().copied().collect(), left);
    shares.values_mut().for_each(|wanted| *wanted = share.min(*wanted));
    for (at, line) in buffers() {
        let room = shares.entry(line.rank).or_default();
        stays[at] = line.length <= *room;
        // The first buffer that does not fit ends the share of its rank, so that the buffers that
        // stay have no holes.
        *room = if stays[at] { *room - line.length } else { 0 };
    }
    stays
}

/// The largest size that each may have so that all together have no more than `total`.
pub(super) fn equal_share(mut wanted: Vec<u64>, mut total: u64) -> u64 {
    wanted.sort_unstable();
    let mut waiting = wanted.len() as u64;
    for each in wanted {
        if each > total / waiting {
            return total / waiting;
        }
        total -= each;
        waiting -= 1;
    }
    u64::MAX
}

/// A line without what is private; the line as it is if nothing in it is.
fn redacted(line: &str, redactor: &Redactor) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(line) else { return redactor.text(line) };
    let before = value.clone();
    redactor.json(&mut value);
    if value == before { line.to_owned() } else { format!("{value}\n") }
}

/// Calls `each` with every complete line. The last line of a trace that was cut off while it was
/// written is incomplete.
fn each_line(path: &Path, mut each: impl FnMut(&str)) -> io::Result<()> {
    let mut reader = BufReader::new(run_dir::open(path)?);
    let mut line = Vec::new();
    let most = LONGEST_LINE as u64;
    while reader.by_ref().take(most).read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        each(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(rank: usize, length: u64, is_buffer: bool) -> Line {
        Line { rank: Some(rank), length, is_buffer }
    }

    proptest! {
        #[test]
        fn what_stays_fits_and_ranks_that_fit_are_whole(
            sizes in prop::collection::vec((0usize..4, 1u64..50, any::<bool>()), 0..60),
            most in 0u64..1500,
        ) {
            let lines: Vec<Line> = sizes.iter().map(|&(r, l, b)| line(r, l, b)).collect();
            let stays = choose(&lines, most);
            let kept = |only: &dyn Fn(&Line) -> bool| -> u64 {
                let both = lines.iter().zip(&stays);
                both.filter(|(line, stays)| **stays && only(line)).map(|(line, _)| line.length).sum()
            };
            let total: u64 = lines.iter().map(|line| line.length).sum();
            prop_assert!(kept(&|_| true) <= most);
            prop_assert!(total > most || kept(&|_| true) == total);
        }
    }

    #[test]
    fn ranks_share_the_room_equally_and_keep_their_first_buffers() {
        let lines = [
            line(0, 5, false),
            line(0, 10, true),
            line(0, 10, true),
            line(0, 10, true),
            line(1, 5, false),
            line(1, 10, true),
            line(1, 10, true),
            line(1, 10, true),
        ];
        let stays = choose(&lines, 50);
        assert_eq!(stays, [true, true, true, false, true, true, true, false]);
    }
}
