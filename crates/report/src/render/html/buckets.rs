//! The panel of bucket flushes: how full each bucket was, in the order in which the ranks flushed the buckets.

use super::labels;
use crate::words::{abridged, weight_text};
use crate::{Flush, Report};
use zprobe_model::trace::FlushReason;

/// The height of a full bucket, and the width of a bar with its gap (wide or narrow), in pixels.
const FULL: f64 = 60.0;
const WIDE: usize = 48;
const NARROW: usize = 8;

/// The largest number of flushes with wide bars and a number below each bar.
const WIDE_SHOWN: usize = 40;

/// The largest number of flushes that are listed; further flushes are only drawn.
const LISTED: usize = 400;

/// The data of the panel of bucket flushes.
pub(super) struct BucketPanel<'a> {
    pub lanes: Vec<BarLane>,
    pub width: usize,
    pub bar: usize,
    /// The y coordinates, in pixels, of the base line and of the line that marks a full bucket.
    pub base: usize,
    pub full: usize,
    pub has_numbers: bool,
    pub reasons: Vec<FlushReason>,
    pub rows: Vec<FlushRow<'a>>,
    /// The number of flushes that are not listed.
    pub more_rows: usize,
}

/// A lane of bars for the ranks that flushed the same buckets.
pub(super) struct BarLane {
    pub ranks: String,
    pub bars: Vec<Bar>,
    /// The x coordinate at which each step begins, with the number of the step.
    pub steps: Vec<(usize, usize)>,
}

/// A bar of the drawing: one flush.
pub(super) struct Bar {
    pub x: usize,
    /// The x coordinate of the middle of the bar.
    pub middle: usize,
    pub y: String,
    pub height: String,
    pub reason: FlushReason,
    pub elements: usize,
    pub title: String,
}

/// A row of the list: one flush.
pub(super) struct FlushRow<'a> {
    pub flush: &'a Flush,
    pub ranks: String,
    pub params: String,
    pub fill: String,
}

impl<'a> BucketPanel<'a> {
    pub fn new(report: &'a Report) -> Option<Self> {
        if report.buckets.is_empty() {
            return None;
        }
        let world_size = report.ranks.len();
        let mut sequences: Vec<(Vec<usize>, Vec<&Flush>)> = Vec::new();
        for rank in 0..world_size {
            let own: Vec<&Flush> =
                report.buckets.iter().filter(|flush| flush.ranks.contains(&rank)).collect();
            match sequences.iter_mut().find(|(_, known)| *known == own) {
                Some((ranks, _)) => ranks.push(rank),
                None if own.is_empty() => {}
                None => sequences.push((vec![rank], own)),
            }
        }
        let longest = sequences.iter().map(|(_, own)| own.len()).max().unwrap_or(0);
        let bar = if longest > WIDE_SHOWN { NARROW } else { WIDE };
        let most = report.buckets.iter().map(fill).fold(1.0, f64::max).min(3.0);
        let base = most * FULL;
        let lanes = sequences
            .iter()
            .map(|(ranks, own)| BarLane {
                ranks: labels::ranks(ranks, world_size),
                bars: own.iter().enumerate().map(|(at, f)| Bar::new(at, f, bar, base)).collect(),
                steps: (0..own.len())
                    .filter(|&at| at == 0 || own[at].step != own[at - 1].step)
                    .map(|at| (at * bar, own[at].step))
                    .collect(),
            })
            .collect();
        let row = |flush: &'a Flush| FlushRow {
            ranks: labels::ranks(&flush.ranks, world_size),
            fill: percent(flush),
            params: abridged(&flush.params),
            flush,
        };
        let mut reasons: Vec<FlushReason> = report.buckets.iter().map(|f| f.reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        Some(Self {
            lanes,
            width: longest * bar,
            bar: bar - 2,
            base: base as usize,
            full: (base - FULL) as usize,
            has_numbers: bar == WIDE,
            reasons,
            rows: report.buckets.iter().take(LISTED).map(row).collect(),
            more_rows: report.buckets.len().saturating_sub(LISTED),
        })
    }
}

impl BucketPanel<'_> {
    /// The height of the drawing of one lane, in pixels.
    pub fn height(&self) -> usize {
        self.base + if self.has_numbers { 36 } else { 18 }
    }

    /// The reason for a flush, in words.
    pub fn describe(&self, reason: &FlushReason) -> &'static str {
        match reason {
            FlushReason::Full => "full: the next parameter did not fit",
            FlushReason::Oversized => "oversized: a parameter larger than the bucket",
            FlushReason::Boundary => "boundary: the last microbatch was done",
        }
    }
}

/// The fill of a bucket: its elements in units of its capacity.
fn fill(flush: &Flush) -> f64 {
    flush.elements as f64 / flush.capacity.max(1) as f64
}

fn percent(flush: &Flush) -> String {
    format!("{} %", weight_text((fill(flush) * 1000.0).round() / 10.0))
}

impl Bar {
    fn new(at: usize, flush: &Flush, bar: usize, base: f64) -> Self {
        // The height of a bar is limited, so that a bucket with many times its capacity does not dwarf the others.
        let height = (fill(flush) * FULL).min(base);
        Self {
            x: at * bar + 1,
            middle: at * bar + bar / 2,
            y: format!("{:.1}", base - height),
            height: format!("{height:.1}"),
            reason: flush.reason,
            elements: flush.elements,
            title: format!(
                "step {}, microbatch {}, flush {}: {} of {} elements ({}), {}",
                flush.step,
                flush.microbatch,
                flush.flush,
                flush.elements,
                flush.capacity,
                percent(flush),
                flush.reason,
            ),
        }
    }
}
