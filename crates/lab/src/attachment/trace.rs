//! Cuts a trace to a maximum size, in whole lines.
//!
//! Most of a trace's size is buffers. All other records stay as long as they fit; the remaining room is divided
//! equally among the ranks, and each keeps its first buffers.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;

use super::own_text::leave_out_of_record;
use zprobe_model::run_dir;
use zprobe_model::trace::{Event, LONGEST_LINE, Record, TRACE_FILE};
use zprobe_redact::Redactor;

/// A trace that was cut to a maximum size.
#[derive(Debug, Default)]
pub struct Cut {
    /// The remaining lines of the trace, redacted.
    pub text: String,
    /// The number of records that were left out, by rank; `None` stands for the launcher.
    pub left_out: BTreeMap<Option<usize>, usize>,
    /// The size of the whole trace in bytes.
    pub whole: u64,
}

impl Cut {
    /// The sentence that says how many records are missing; `None` if the trace is complete.
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
            "cut to {} of {} bytes: {} records were left out ({}); a report on the cut trace is less complete",
            self.text.len(),
            self.whole,
            self.left_out.values().sum::<usize>(),
            left_out.join(", "),
        ))
    }
}

/// The properties of a trace line that decide whether the line stays.
struct TraceLine {
    rank: Option<usize>,
    length: u64,
    is_buffer: bool,
}

/// Calls `each` with every record that can be parsed in the trace of the run directory `dir`.
///
/// # Errors
/// Fails if the trace cannot be read.
pub fn each_record(dir: &Path, mut each: impl FnMut(&Record)) -> io::Result<()> {
    each_line(&dir.join(TRACE_FILE), |text| {
        if let Ok(record) = serde_json::from_str(text) {
            each(&record);
        }
    })
}

/// Reads the trace of the run directory `dir`, cuts it to at most `most` bytes, and redacts the rest. The user's own text
/// stays only if `with_text` is true.
///
/// # Errors
/// Fails if the trace cannot be read.
pub fn cut(dir: &Path, most: u64, redactor: &Redactor, with_text: bool) -> io::Result<Cut> {
    let path = dir.join(TRACE_FILE);
    let mut lines = Vec::new();
    let mut whole = 0;
    each_line(&path, |text| {
        let record: Option<Record> = serde_json::from_str(text).ok();
        whole += text.len() as u64;
        lines.push(TraceLine {
            rank: record.as_ref().and_then(|record| record.rank),
            length: text.len() as u64,
            is_buffer: record.is_some_and(|it| matches!(it.event, Event::Buffer { .. })),
        });
    })?;
    let stays = choose(&lines, most);
    let mut cut = Cut { whole, ..Cut::default() };
    let mut at = 0;
    each_line(&path, |text| {
        // The file may have grown since the first pass.
        if stays.get(at).copied().unwrap_or(false) {
            cut.text += &redacted(text, redactor, with_text);
        } else if let Some(line) = lines.get(at) {
            *cut.left_out.entry(line.rank).or_default() += 1;
        }
        at += 1;
    })?;
    Ok(cut)
}

/// Chooses the lines that fit into `most` bytes: true for each line that stays.
fn choose(lines: &[TraceLine], most: u64) -> Vec<bool> {
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
        // After the first buffer that does not fit, no buffer of the rank stays, so that the remaining buffers have no
        // gaps.
        *room = if stays[at] { *room - line.length } else { 0 };
    }
    stays
}

/// The largest limit on each of the `wanted` sizes for which their sum is at most `total`.
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

/// The redacted line; a line without private text stays byte for byte the same. A line that is no record is empty if the
/// user's own text is to be left out.
fn redacted(line: &str, redactor: &Redactor, with_text: bool) -> String {
    let Ok(before) = serde_json::from_str::<Value>(line) else {
        return if with_text { redactor.text(line) } else { String::new() };
    };
    let own = if with_text { Some(before.clone()) } else { leave_out_of_record(before.clone()) };
    let Some(mut value) = own else { return String::new() };
    redactor.json(&mut value);
    if value == before { line.to_owned() } else { format!("{value}\n") }
}

/// Calls `each` with every complete line. The last line may be incomplete if the run ended while writing it.
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

    fn line(rank: usize, length: u64, is_buffer: bool) -> TraceLine {
        TraceLine { rank: Some(rank), length, is_buffer }
    }

    proptest! {
        #[test]
        fn what_stays_fits_and_ranks_that_fit_are_whole(
            sizes in prop::collection::vec((0usize..4, 1u64..50, any::<bool>()), 0..60),
            most in 0u64..1500,
        ) {
            let lines: Vec<TraceLine> = sizes.iter().map(|&(r, l, b)| line(r, l, b)).collect();
            let stays = choose(&lines, most);
            let kept = |only: &dyn Fn(&TraceLine) -> bool| -> u64 {
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
